//! Requests come in: what is taken, what is refused, and why.

use lorad_blocks::heat::Epoch;

use crate::core::{events_max, half_life, Core};
use crate::error::Refusal;
use crate::explain::Story;
use crate::group::GroupName;
use crate::policy::Split;
use crate::request::RequestSpec;
use crate::tenant::TenantSpec;

impl Core {
    /// Takes a request into its group's queue.
    pub fn add(&mut self, now: u64, spec: RequestSpec) -> Result<(), Refusal> {
        self.forget_absent(self.now.max(now)); // while nothing runs no step does, and bounds depend on it
        let checked =
            self.admissible(now, &spec).and_then(|adapter| Ok((self.know_tenant(spec.tenant)?, adapter)));
        let (tenant, adapter) = checked.inspect_err(|_| self.counters.refused += 1)?;
        self.now = self.now.max(now);
        let name = GroupName { tenant, adapter, priority: spec.priority };
        let group = match self.groups.find(name) {
            Some(group) => group,
            None => {
                let weight = adapter.map_or(100, |adapter| self.adapters[adapter].spec.weight);
                let floor = self.tenants[tenant].group_floor;
                let idle_max = self.config.adapters_max.saturating_add(self.config.tenants_max);
                let group = self.groups.insert(name, weight * spec.priority.weight(), floor, idle_max);
                let at_once = self.config.rows_max + self.config.page_ins_max;
                self.charged_groups.grow(self.groups.entries().len(), at_once as usize);
                group
            }
        };
        let deadline = spec.deadline;
        let story = Story {
            tier: adapter.map_or("base", |adapter| self.adapters[adapter].residency.name()),
            passed_by: self.counters.admissions,
            admitted: None,
            first_token: None,
            lacked: None,
            preemptions: 0,
            cached_tokens: 0,
        };
        let entry = self.requests.insert(spec, group, adapter, self.now, story);
        self.counters.added += 1;
        self.groups.queues.grow_elements(self.requests.entries().len());
        self.deadlines.grow_elements(self.requests.entries().len());
        if let Some(deadline) = deadline {
            self.deadlines.put(0, entry, (deadline, 0));
            self.events.reserve(events_max(&self.config, self.deadlines.length(0)));
        }
        self.groups.hold(group);
        self.groups.queues.push_back(group, entry);
        self.waiting += 1;
        self.arrive(tenant);
        self.tenants[tenant].waiting += 1;
        if let Some(adapter) = adapter {
            let state = &mut self.adapters[adapter];
            state.holders += 1;
            state.waiting += 1;
            state.heat.touch(Epoch::of(self.now, half_life(&self.config)));
            self.ask_for(adapter);
            self.relist(adapter);
        }
        self.settle(group);
        Ok(())
    }

    /// The request's adapter, or why it can't be taken. What is refused for ever is named before what is refused for now.
    /// A refused request doesn't make its tenant known.
    fn admissible(&self, now: u64, spec: &RequestSpec) -> Result<Option<u32>, Refusal> {
        let config = &self.config;
        if self.requests.find(spec.id).is_some() {
            return Err(Refusal::DuplicateRequest { request: spec.id });
        }
        let adapter = spec.adapter.map(|adapter| self.open_adapter(adapter)).transpose()?;
        let adapter_pages =
            adapter.map_or(0, |adapter| config.image_pages(self.adapters[adapter].spec.pages));
        if spec.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if spec.max_tokens == 0 {
            return Err(Refusal::NoTokensWanted);
        }
        let tokens = spec.prompt.len() as u64 + u64::from(spec.max_tokens);
        if tokens > u64::from(config.sequence_tokens_max) {
            return Err(Refusal::SequenceTooLong { limit: config.sequence_tokens_max, tokens });
        }
        let pages = u64::from(config.pages_for(tokens as u32));
        let (limit, needed) = match config.policy.split {
            Split::Unified => {
                (config.pages_usable() - config.pinned_pages_max, pages + u64::from(adapter_pages))
            }
            Split::Fixed { .. } | Split::Slots { .. } => (config.split().1, pages),
        };
        if needed > u64::from(limit) {
            return Err(Refusal::NeverFits { limit, pages: needed });
        }
        if spec.stop_tokens.len() > config.stop_tokens_max as usize {
            let count = spec.stop_tokens.len() as u64;
            return Err(Refusal::TooManyStopTokens { limit: config.stop_tokens_max, count });
        }
        if let Some(&token) = spec.prompt.iter().find(|&&token| token >= config.vocab) {
            return Err(Refusal::TokenOutOfRange { limit: config.vocab, token });
        }
        let now = self.now.max(now);
        if let Some(deadline) = spec.deadline.filter(|&deadline| deadline <= now) {
            return Err(Refusal::DeadlinePassed { deadline, now });
        }
        let known = self.tenants.find(spec.tenant);
        if let Some(tenant) = known.map(|entry| &self.tenants[entry]) {
            let limit = tenant.spec.pages_max;
            if pages + u64::from(adapter_pages) > u64::from(limit) {
                return Err(Refusal::TenantNeverFits { limit, pages: pages + u64::from(adapter_pages) });
            }
            if tenant.waiting >= tenant.spec.waiting_max {
                let (limit, waiting) = (tenant.spec.waiting_max, tenant.waiting);
                return Err(Refusal::TenantQueueFull { limit, waiting });
            }
        }
        if self.waiting >= config.waiting_max {
            return Err(Refusal::QueueFull { limit: config.waiting_max, waiting: self.waiting });
        }
        if known.is_none() {
            self.room_for_tenant()?;
        }
        let name = known.map(|tenant| GroupName { tenant, adapter, priority: spec.priority });
        if let Some(entry) = spec.after.and_then(|request| self.requests.find(request)) {
            let request = &self.requests[entry];
            if Some(self.groups[request.group].name) != name {
                return Err(Refusal::AfterAnother { request: request.id });
            }
        }
        self.accept_wait(name)?;
        Ok(adapter)
    }

    /// Refuses an arrival by which somebody's wait could become longer than is accepted. `None`: of a tenant that isn't
    /// known yet.
    fn accept_wait(&self, name: Option<GroupName>) -> Result<(), Refusal> {
        let limit = self.config.wait_us_max;
        let group = name.and_then(|name| self.groups.find(name));
        let new_group = group.is_none_or(|group| self.groups.waiting(group) == 0);
        if limit == 0 || !new_group {
            return Ok(());
        }
        let weight = |entry: u32| u64::from(self.tenants[entry].spec.weight);
        let (own_weight, own_groups) = match name {
            Some(name) => (weight(name.tenant), self.tenants[name.tenant].groups_waiting),
            None => (TenantSpec::default().weight.into(), 0),
        };
        let new_tenant = own_groups == 0;
        let weights = self.tenants.weights + if new_tenant { own_weight } else { 0 };
        let tenants = u64::from(self.tenants.waiting.length(0)) + u64::from(new_tenant);
        let present = self.present_with(name.map(|name| name.tenant)).max(self.tenants.peak_present);
        let bound = |groups: u32, weight: u64| {
            let pages = self.adapters.pages_max;
            self.config.bound_us(
                pages,
                groups.into(),
                weight,
                weights.max(self.tenants.peak_weights),
                tenants.max(self.tenants.peak_tenants.into()),
                present,
            )
        };
        let own = bound(own_groups + 1, own_weight);
        // a new tenant makes everybody's longer
        let others = new_tenant
            .then(|| {
                self.tenants
                    .waiting
                    .iter(0)
                    .map(|entry| bound(self.tenants[entry].groups_waiting, weight(entry)))
                    .max()
            })
            .flatten();
        let bound = own.max(others.unwrap_or(0));
        if bound > limit {
            return Err(Refusal::WaitTooLong { limit, bound });
        }
        Ok(())
    }
}
