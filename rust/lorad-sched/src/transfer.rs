//! Bytes on their way: adapters that come to the host and page-ins, as the host reports them.

use crate::adapter::{AdapterId, Residency};
use crate::core::Core;
use crate::error::PageInError;
use crate::event::{Event, FailReason};

impl Core {
    /// Asks the host for an adapter's bytes, once.
    pub(crate) fn ask_for(&mut self, entry: u32) {
        let adapter = &mut self.adapters[entry];
        if adapter.residency == (Residency::Remote { asked: false }) {
            adapter.residency = Residency::Remote { asked: true };
            let adapter = adapter.id;
            self.tell(Event::AdapterWanted { adapter });
        }
    }

    /// The bytes of an adapter are on the host.
    pub fn arrived(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let entry = self.remote(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Cold;
        self.settle_adapter(entry);
        Ok(())
    }

    /// The bytes of an adapter can't be brought to the host. Its waiting requests end with [`FailReason::Fetch`]; the next
    /// request asks again.
    pub fn fetch_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let entry = self.remote(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Remote { asked: false };
        self.unwant(entry);
        self.tell(Event::AdapterFailed { adapter });
        self.fail_waiting(entry, FailReason::Fetch);
        Ok(())
    }

    fn remote(&self, adapter: AdapterId) -> Result<u32, PageInError> {
        let entry = self.adapters.find(adapter).ok_or(PageInError::UnknownAdapter { adapter })?;
        match self.adapters[entry].residency {
            Residency::Remote { .. } => Ok(entry),
            Residency::Vacant
            | Residency::Cold
            | Residency::Loading { .. }
            | Residency::Hot { .. }
            | Residency::Failed { .. } => Err(PageInError::NotRemote { adapter }),
        }
    }

    /// So many layers of an adapter are in its pages.
    pub fn page_in_reached(&mut self, now: u64, adapter: AdapterId, reached: u32) -> Result<(), PageInError> {
        let (entry, _) = self.loading(adapter)?;
        self.now = self.now.max(now);
        let all = self.adapters[entry].spec.layers;
        if let Residency::Loading { layers, .. } = &mut self.adapters[entry].residency {
            *layers = reached.min(all).max(*layers);
        }
        Ok(())
    }

    /// The bytes of an adapter are in its pages. If nobody waits for it any more it's an idle hot adapter, or forgotten
    /// when it was unregistered.
    pub fn page_in_done(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.adapters[entry].residency = Residency::Hot { slot, last_use: self.now };
        self.adapters.loading -= 1;
        self.tell(Event::AdapterHot { adapter, slot });
        self.discharge(entry);
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
        Ok(())
    }

    /// The bytes of an adapter didn't arrive. Its waiting requests end with [`FailReason::PageIn`], its pages go back;
    /// the next request for it tries again.
    pub fn page_in_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        self.now = self.now.max(now);
        self.counters.page_ins_failed += 1;
        self.end_load(entry, slot, Residency::Failed { why: FailReason::PageIn });
        self.tell(Event::AdapterFailed { adapter });
        self.fail_waiting(entry, FailReason::PageIn);
        Ok(())
    }

    /// The host has stopped a page-in that nobody waited for. Whoever has come since gets a new one.
    pub fn page_in_dropped(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        let (entry, slot) = self.loading(adapter)?;
        if !matches!(self.adapters[entry].residency, Residency::Loading { dropped: true, .. }) {
            return Err(PageInError::NotDropped { adapter });
        }
        self.now = self.now.max(now);
        self.end_load(entry, slot, Residency::Cold);
        self.settle_adapter(entry);
        self.forget_if_drained(entry);
        Ok(())
    }

    fn end_load(&mut self, entry: u32, slot: u32, residency: Residency) {
        self.discharge(entry);
        self.adapters[entry].residency = residency;
        self.adapters.loading -= 1;
        self.give_image(entry, slot);
    }

    /// Tells the host to stop a page-in that nobody waits for any more.
    pub(crate) fn drop_unwanted_load(&mut self, entry: u32) {
        let adapter = &mut self.adapters[entry];
        if adapter.waiting > 0 || adapter.wanted || adapter.pinned {
            return;
        }
        if let Residency::Loading { dropped: dropped @ false, .. } = &mut adapter.residency {
            *dropped = true;
            let adapter = adapter.id;
            self.tell(Event::AdapterDropped { adapter });
        }
    }

    fn loading(&self, adapter: AdapterId) -> Result<(u32, u32), PageInError> {
        let entry = self.adapters.find(adapter).ok_or(PageInError::UnknownAdapter { adapter })?;
        match self.adapters[entry].residency {
            Residency::Loading { slot, .. } => Ok((entry, slot)),
            Residency::Vacant
            | Residency::Remote { .. }
            | Residency::Cold
            | Residency::Hot { .. }
            | Residency::Failed { .. } => Err(PageInError::NotLoading { adapter }),
        }
    }
}
