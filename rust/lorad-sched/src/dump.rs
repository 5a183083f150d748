//! The state as text and as figures. One dump serves scripts, tests, the debug calls and crash reports.

use std::fmt::Write;

use lorad_blocks::pool::OwnerKind;

use crate::adapter::{Adapter, AdapterId, Residency, Standing};
use crate::core::{adapter_of, Core};
use crate::group::Place;
use crate::plan::Numbers;
use crate::request::RequestState;
use crate::stats::{AdapterStats, Stats};

impl Residency {
    fn name(&self) -> &'static str {
        match self {
            Residency::Vacant => "vacant",
            Residency::Cold => "cold",
            Residency::Loading { .. } => "loading",
            Residency::Hot { .. } => "hot",
            Residency::Failed { .. } => "failed",
        }
    }

    fn slot(&self) -> Option<u32> {
        match self {
            Residency::Loading { slot, .. } | Residency::Hot { slot, .. } => Some(*slot),
            Residency::Vacant | Residency::Cold | Residency::Failed { .. } => None,
        }
    }
}

impl Core {
    /// The whole state as stable text.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        // writing to a String can't fail
        let _ = self.write_dump(&mut text);
        text
    }

    fn write_dump(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "now {} plans {}", self.now, self.counters.plans)?;
        match self.flight {
            Some(number) => writeln!(text, " in-flight {number}")?,
            None => writeln!(text)?,
        }
        write!(text, "pages {}:", self.pool.total())?;
        for kind in OwnerKind::ALL {
            write!(text, " {} {}", kind.name(), self.pool.count(kind))?;
        }
        write!(text, "\nrows {} of {}", self.running.len(), self.config.rows_max)?;
        writeln!(text, ", waiting {} of {}", self.waiting, self.config.waiting_max)?;
        for entry in self.adapters.sorted() {
            self.write_adapter(text, &self.adapters[entry], self.groups.waiting(entry + 1))?;
        }
        for &entry in &self.running {
            self.write_running(text, entry)?;
        }
        for row in &self.chosen {
            let request = &self.requests[row.request];
            if let RequestState::Ending { line } = request.state {
                let pages = Numbers(self.lines.pages(line));
                writeln!(
                    text,
                    "request {} {}: ending line {line} pages {pages}",
                    request.id,
                    self.group(request.group)
                )?;
            }
        }
        for group in std::iter::once(0).chain(self.adapters.sorted().into_iter().map(|entry| entry + 1)) {
            self.write_queue(text, group)?;
        }
        for place in Place::ALL {
            if self.groups.length(place) > 0 {
                write!(text, "{}:", place.name())?;
                self.groups.iter(place).try_for_each(|group| write!(text, " {}", self.group(group)))?;
                writeln!(text)?;
            }
        }
        if let Some(group) = self.groups.urgent {
            writeln!(text, "urgent: {}", self.group(group))?;
        }
        if !self.adapters.clears.is_empty() {
            writeln!(text, "slots to clear: {}", Numbers(&self.adapters.clears))?;
        }
        Ok(())
    }

    fn write_adapter(&self, text: &mut String, adapter: &Adapter, waiting: u32) -> std::fmt::Result {
        write!(text, "adapter {} tag {}: ", adapter.id, adapter.spec.tag)?;
        match adapter.residency {
            Residency::Failed { why } => write!(text, "{}", why.name())?,
            residency => write!(text, "{}", residency.name())?,
        }
        match adapter.residency {
            Residency::Vacant | Residency::Cold | Residency::Failed { .. } => {}
            Residency::Loading { slot, since } => {
                write!(text, " slot {slot} since {since} pages {}", Numbers(&adapter.image))?;
            }
            Residency::Hot { slot, last_use } => {
                write!(text, " slot {slot} last-use {last_use} pages {}", Numbers(&adapter.image))?;
            }
        }
        match adapter.standing {
            Standing::Open => {}
            Standing::Draining => write!(text, " draining")?,
        }
        writeln!(text, ", running {} waiting {waiting}", adapter.running)
    }

    fn write_running(&self, text: &mut String, entry: u32) -> std::fmt::Result {
        let request = &self.requests[entry];
        let RequestState::Running { line, computed, planned } = request.state else { return Ok(()) };
        write!(text, "request {} {}: running line {line}", request.id, self.group(request.group))?;
        write!(text, " computed {computed} of {}", request.length())?;
        if planned > 0 {
            write!(text, " planned {planned}")?;
        }
        write!(text, " answer {} of {}", request.answered(), request.max_tokens)?;
        if request.tenant != 0 {
            write!(text, " tenant {}", request.tenant)?;
        }
        writeln!(text, " pages {}", Numbers(self.lines.pages(line)))
    }

    fn write_queue(&self, text: &mut String, group: u32) -> std::fmt::Result {
        if self.groups.waiting(group) == 0 {
            return Ok(());
        }
        write!(text, "queue {}:", self.group(group))?;
        for entry in self.groups.queues.iter(group) {
            let request = &self.requests[entry];
            write!(text, " {}", request.id)?;
            if request.state == RequestState::Preempted {
                write!(text, "(preempted, answer {} of {})", request.answered(), request.max_tokens)?;
            }
        }
        if let Some(head) = self.groups.queues.front(group) {
            write!(text, ", since {}", self.requests[head].arrived)?;
        }
        match self.groups.ticket(group) {
            Some(ticket) => writeln!(text, ", passed over {}", self.counters.admissions - ticket),
            None => writeln!(text),
        }
    }

    fn group(&self, group: u32) -> GroupName {
        GroupName(adapter_of(group).map(|entry| self.adapters[entry].id))
    }

    /// The figures of now.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len() as u32,
            waiting: self.waiting,
            adapters: self.adapters.count(),
            adapters_loading: self.adapters.loading,
            adapters_active: self.adapters.active,
            slots_free: self.adapters.slots_free.len() as u32,
            pages_total: self.pool.total(),
            pages_free: self.pool.free(),
            pages_sequence: self.pool.count(OwnerKind::Sequence),
            pages_adapter: self.pool.count(OwnerKind::Adapter),
            pages_reserved: self.pool.count(OwnerKind::Reserved),
            counters: self.counters,
        }
    }

    /// The figures of each adapter, in the order of their ids.
    pub fn adapter_stats(&self) -> Vec<AdapterStats> {
        let stats = |entry: u32| {
            let adapter = &self.adapters[entry];
            AdapterStats {
                adapter: adapter.id,
                tag: adapter.spec.tag,
                state: match adapter.standing {
                    Standing::Open => adapter.residency.name(),
                    Standing::Draining => "draining",
                },
                slot: adapter.residency.slot(),
                pages: adapter.image.len() as u32,
                running: adapter.running,
                waiting: self.groups.waiting(entry + 1),
            }
        };
        self.adapters.sorted().into_iter().map(stats).collect()
    }
}

/// `base`, or the adapter's id.
struct GroupName(Option<AdapterId>);

impl std::fmt::Display for GroupName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => write!(f, "base"),
            Some(adapter) => write!(f, "adapter {adapter}"),
        }
    }
}
