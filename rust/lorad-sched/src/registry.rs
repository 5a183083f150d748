//! What is registered: adapters and tenants, and what the host wants of them beside requests.

use crate::adapter::{AdapterId, AdapterSpec, Residency, Standing};
use crate::core::Core;
use crate::error::Refusal;
use crate::event::Event;
use crate::policy::Split;
use crate::tenant::{TenantId, TenantSpec, WEIGHT_MAX};

impl Core {
    /// Registers an adapter. Its pages are taken when a request needs it.
    pub fn register(&mut self, spec: AdapterSpec) -> Result<AdapterId, Refusal> {
        let owner = self.registrable(&spec).inspect_err(|_| self.counters.refused += 1)?;
        let image = self.config.image_pages(spec.pages);
        let Some(entry) = self.adapters.insert(spec, image, owner) else {
            self.counters.refused += 1;
            return Err(Refusal::AdapterIdsSpent { limit: i32::MAX as u32 });
        };
        self.tenants[owner].adapters += 1;
        self.adapters.pages_max = self.adapters.pages_max.max(spec.pages);
        self.allow();
        self.groups.grow_adapters(self.adapters.entries().len());
        Ok(self.adapters[entry].id)
    }

    /// The tenant that an adapter is registered for, or why it can't be.
    fn registrable(&mut self, spec: &AdapterSpec) -> Result<u32, Refusal> {
        let (adapters_max, _) = self.config.split();
        // with an adapter alone nobody is served: a page of KV comes with it
        let limit = match self.config.policy.split {
            Split::Unified => adapters_max - self.config.pinned_pages_max,
            Split::Fixed { .. } => adapters_max - self.config.pinned_pages_max + 1,
            Split::Slots { pages, .. } => pages + 1,
        };
        if spec.tag == 0 {
            return Err(Refusal::ZeroTag);
        }
        if spec.pages == 0 {
            return Err(Refusal::EmptyAdapter);
        }
        if spec.pages >= limit {
            return Err(Refusal::AdapterTooLarge { limit, pages: spec.pages.saturating_add(1) });
        }
        if spec.weight == 0 || spec.weight > WEIGHT_MAX {
            return Err(Refusal::WeightOutOfRange { limit: WEIGHT_MAX, weight: spec.weight });
        }
        if self.adapters.count() >= self.config.adapters_max {
            let adapters = self.adapters.count();
            return Err(Refusal::AdaptersFull { limit: self.config.adapters_max, adapters });
        }
        let owner = self.know_tenant(spec.tenant)?;
        let tenant = &self.tenants[owner];
        if tenant.adapters >= tenant.spec.adapters_max {
            return Err(Refusal::TenantAdaptersFull {
                limit: tenant.spec.adapters_max,
                adapters: tenant.adapters,
            });
        }
        Ok(owner)
    }

    /// Service above the floor that is still inside the share: a step in which all rows decode; and with which a tenant is
    /// still light: the longest prompt. Both of a tenant of the usual weight.
    pub(crate) fn allow(&mut self) {
        let (config, costs) = (&self.config, &self.config.costs);
        let row = costs.token_ns.saturating_add(costs.sample_ns);
        let rows = u64::from(config.rows_max);
        let step = row.saturating_mul(rows).saturating_add(costs.shared_ns(rows, true));
        let prompt = costs.row_ns(0, config.sequence_tokens_max, true, self.adapters.pages_max);
        self.tenants.slack = step / 100;
        self.tenants.grace = prompt.max(step) / 100;
    }

    /// Sets a tenant's share and limits. What it has above a new limit stays; what it asks for is refused or waits.
    pub fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) -> Result<(), Refusal> {
        let entry = self.known_tenant(tenant, &spec).inspect_err(|_| self.counters.refused += 1)?;
        let capped = self.is_capped(entry);
        let present = self.is_present(entry);
        let state = &mut self.tenants[entry];
        let waits = state.groups_waiting > 0;
        let (before, after) = (u64::from(state.spec.weight), u64::from(spec.weight));
        state.spec = spec;
        if present {
            self.tenants.present_weights = self.tenants.present_weights - before + after;
        }
        if waits {
            self.tenants.weights = self.tenants.weights - before + after;
            self.tenants.peak_weights = self.tenants.peak_weights.max(self.tenants.weights);
        }
        self.go_on(entry);
        self.recap(entry, capped);
        Ok(())
    }

    fn known_tenant(&mut self, tenant: TenantId, spec: &TenantSpec) -> Result<u32, Refusal> {
        if spec.weight == 0 || spec.weight > WEIGHT_MAX {
            return Err(Refusal::WeightOutOfRange { limit: WEIGHT_MAX, weight: spec.weight });
        }
        self.know_tenant(tenant)
    }

    /// The entry of a tenant, which is made when it's new.
    pub(crate) fn know_tenant(&mut self, tenant: TenantId) -> Result<u32, Refusal> {
        if let Some(entry) = self.tenants.find(tenant) {
            return Ok(entry);
        }
        let forgotten = self.room_for_tenant()?;
        if let Some(entry) = forgotten {
            self.groups.forget_tenant(entry);
        }
        let entry = self.tenants.insert(tenant, TenantSpec::default(), forgotten);
        self.groups.grow_tenants(entry as usize + 1);
        self.charged_tenants
            .grow(entry as usize + 1, (self.config.rows_max + self.config.page_ins_max) as usize);
        Ok(entry)
    }

    /// Whose place in the table a further tenant gets: `None`: one of its own, until the table is full; then that of the
    /// least served one which is as one that was never seen.
    pub(crate) fn room_for_tenant(&self) -> Result<Option<u32>, Refusal> {
        let (limit, tenants) = (self.config.tenants_max, self.tenants.entries().len() as u32);
        if tenants < limit {
            return Ok(None);
        }
        let forgettable = (0..tenants).filter(|&entry| self.is_forgettable(entry));
        let least = forgettable.min_by_key(|&entry| self.tenants[entry].service);
        least.map(Some).ok_or(Refusal::TenantsFull { limit, tenants })
    }

    /// Has a tenant nothing that it would miss: requests, now or a while ago, adapters, a share or limits of its own?
    fn is_forgettable(&self, entry: u32) -> bool {
        let tenant = &self.tenants[entry];
        tenant.spec == TenantSpec::default()
            && tenant.adapters == 0
            && tenant.pages == 0
            && tenant.charged == 0
            && !self.groups.is_held(entry)
            && !self.is_present(entry)
    }

    /// Takes no new requests for an adapter. Those that hold it keep it to their end; then [`Event::AdapterGone`]. An
    /// adapter that is being paged in is forgotten when the page-in was reported. Unknown adapters are ignored.
    pub fn unregister(&mut self, now: u64, adapter: AdapterId) {
        if let Some(entry) = self.adapters.find(adapter) {
            self.now = self.now.max(now);
            self.adapters[entry].standing = Standing::Draining;
            self.unwant(entry);
            self.set_pinned(entry, false);
            self.drop_unwanted_load(entry);
            self.forget_if_drained(entry);
        }
    }

    /// Keeps an adapter in its pages once it's there, and pages it in when there is room that nobody uses. Unpinned, it
    /// may be evicted again.
    pub fn pin(&mut self, now: u64, adapter: AdapterId, pinned: bool) -> Result<(), Refusal> {
        let entry = self.open_adapter(adapter).inspect_err(|_| self.counters.refused += 1)?;
        let limit = self.config.pinned_pages_max;
        let pages = self.config.image_pages(self.adapters[entry].spec.pages);
        let all = u64::from(self.adapters.pinned_pages) + u64::from(pages);
        if pinned && !self.adapters[entry].pinned && all > u64::from(limit) {
            self.counters.refused += 1;
            return Err(Refusal::PinsFull { limit, pages: all });
        }
        // one slot is left for those that aren't pinned, or they would wait for ever
        let limit = self.config.slots_max - 1;
        let adapters = self.adapters.entries().iter().filter(|adapter| adapter.pinned).count() as u32;
        if pinned && !self.adapters[entry].pinned && adapters >= limit {
            self.counters.refused += 1;
            return Err(Refusal::PinSlotsFull { limit, adapters });
        }
        self.now = self.now.max(now);
        self.set_pinned(entry, pinned);
        if pinned {
            self.want(entry);
        }
        Ok(())
    }

    /// Pages an adapter in although nobody waits for it, as soon as there is room that nobody uses.
    pub fn prewarm(&mut self, now: u64, adapter: AdapterId) -> Result<(), Refusal> {
        let entry = self.open_adapter(adapter).inspect_err(|_| self.counters.refused += 1)?;
        self.now = self.now.max(now);
        self.want(entry);
        Ok(())
    }

    pub(crate) fn open_adapter(&self, adapter: AdapterId) -> Result<u32, Refusal> {
        let entry = self.adapters.find(adapter).ok_or(Refusal::UnknownAdapter { adapter })?;
        match self.adapters[entry].standing {
            Standing::Open => Ok(entry),
            Standing::Draining => Err(Refusal::AdapterDraining { adapter }),
        }
    }

    fn set_pinned(&mut self, entry: u32, pinned: bool) {
        let pages = self.config.image_pages(self.adapters[entry].spec.pages);
        match (self.adapters[entry].pinned, pinned) {
            (false, true) => self.adapters.pinned_pages += pages,
            (true, false) => self.adapters.pinned_pages -= pages,
            (false, false) | (true, true) => return,
        }
        self.adapters[entry].pinned = pinned;
        self.relist(entry);
    }

    fn want(&mut self, entry: u32) {
        let wanted = &mut self.adapters[entry].wanted;
        if !std::mem::replace(wanted, true) {
            self.adapters.wanted.push(entry);
            self.ask_for(entry);
        }
    }

    pub(crate) fn unwant(&mut self, entry: u32) {
        if std::mem::replace(&mut self.adapters[entry].wanted, false) {
            self.adapters.wanted.retain(|&other| other != entry);
        }
    }

    /// Forgets an unregistered adapter that nobody holds and that nothing copies into.
    pub(crate) fn forget_if_drained(&mut self, entry: u32) {
        let adapter = &self.adapters[entry];
        if adapter.standing != Standing::Draining || adapter.holders > 0 {
            return;
        }
        let (id, owner) = (adapter.id, adapter.owner);
        match adapter.residency {
            Residency::Vacant | Residency::Loading { .. } => return,
            Residency::Hot { slot, .. } => {
                self.adapters[entry].residency = Residency::Cold;
                self.give_image(entry, slot);
            }
            Residency::Cold | Residency::Remote { .. } | Residency::Failed { .. } => {}
        }
        self.groups.forget_adapter(entry);
        self.forget_prefixes(id.number().into());
        self.adapters.vacate(entry);
        self.tenants[owner].adapters -= 1;
        self.tell(Event::AdapterGone { adapter: id });
    }
}
