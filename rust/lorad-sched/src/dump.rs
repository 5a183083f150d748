//! The state as text and as figures. One dump serves scripts, tests, the debug calls and crash reports.

use std::fmt::Write;

use lorad_blocks::pool::OwnerKind;

use crate::adapter::{Adapter, AdapterId, Residency, Standing};
use crate::core::Core;
use crate::group::Place;
use crate::plan::Numbers;
use crate::request::{Priority, RequestState};
use crate::stats::{AdapterStats, Stats, TenantStats};
use crate::tenant::{Tenant, TenantId};

impl Residency {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Residency::Vacant => "vacant",
            Residency::Remote { .. } => "remote",
            Residency::Cold => "cold",
            Residency::Loading { .. } => "loading",
            Residency::Hot { .. } => "hot",
            Residency::Failed { .. } => "failed",
        }
    }

    fn slot(&self) -> Option<u32> {
        match self {
            Residency::Loading { slot, .. } | Residency::Hot { slot, .. } => Some(*slot),
            Residency::Vacant | Residency::Remote { .. } | Residency::Cold | Residency::Failed { .. } => None,
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
        for (word, flight) in [" in-flight", " ahead"].into_iter().zip(self.flights.flying()) {
            write!(text, "{word} {}", flight.number)?;
        }
        writeln!(text)?;
        write!(text, "pages {}:", self.pool.total())?;
        for kind in OwnerKind::ALL {
            write!(text, " {} {}", kind.name(), self.pool.count(kind))?;
        }
        write!(text, "\nrows {} of {}", self.running.len(), self.config.rows_max)?;
        writeln!(text, ", waiting {} of {}", self.waiting, self.config.waiting_max)?;
        for entry in self.tenants.sorted() {
            self.write_tenant(text, entry)?;
        }
        for entry in self.adapters.sorted() {
            self.write_adapter(text, &self.adapters[entry])?;
        }
        for &entry in &self.running {
            self.write_running(text, entry)?;
        }
        let rows = self.flights.flying().iter().enumerate();
        for (index, row) in rows.flat_map(|(index, flight)| flight.rows.iter().map(move |row| (index, row))) {
            let request = &self.requests[row.request];
            let before = &self.flights.flying()[..index];
            if before.iter().flat_map(|flight| &flight.rows).any(|other| other.request == row.request) {
                continue; // it's in both
            }
            if let RequestState::Ending { line, .. } = request.state {
                let pages = Numbers(self.lines.pages(line));
                writeln!(
                    text,
                    "request {} {}: ending line {line} pages {pages}",
                    request.id,
                    self.group(request.group)
                )?;
            }
        }
        let mut groups: Vec<u32> =
            (0..self.groups.entries().len() as u32).filter(|&group| self.groups.waiting(group) > 0).collect();
        groups.sort_by_key(|&group| {
            let name = self.groups[group].name;
            let adapter = name.adapter.map(|adapter| self.adapters[adapter].id);
            (self.tenants[name.tenant].id, adapter, name.priority)
        });
        for &group in &groups {
            self.write_queue(text, group)?;
        }
        for place in Place::ALL {
            let mut listed: Vec<u32> =
                groups.iter().copied().filter(|&group| self.groups.place(group) == Some(place)).collect();
            listed.sort_by_key(|&group| {
                self.groups.rank(group, self.tenants[self.groups[group].name.tenant].service)
            });
            if !listed.is_empty() {
                write!(text, "{}:", place.name())?;
                listed.iter().try_for_each(|&group| write!(text, " {}", self.group(group)))?;
                writeln!(text)?;
            }
        }
        if !self.groups.urgent.is_empty() {
            write!(text, "urgent:")?;
            self.groups.urgent.iter().try_for_each(|&group| write!(text, " {}", self.group(group)))?;
            writeln!(text)?;
        }
        if !self.adapters.wanted.is_empty() {
            let ids: Vec<AdapterId> =
                self.adapters.wanted.iter().map(|&entry| self.adapters[entry].id).collect();
            writeln!(text, "wanted adapters: {}", Numbers(&ids))?;
        }
        if self.prefix.pages() > 0 {
            text.push_str(&self.prefix.dump());
        }
        if !self.adapters.clears.is_empty() {
            writeln!(text, "slots to clear: {}", Numbers(&self.adapters.clears))?;
        }
        Ok(())
    }

    fn write_tenant(&self, text: &mut String, entry: u32) -> std::fmt::Result {
        let tenant = &self.tenants[entry];
        write!(text, "tenant {}: weight {} service {}", tenant.id, tenant.spec.weight, tenant.service)?;
        let (running, waiting, pages) = (tenant.running, tenant.waiting, tenant.pages);
        write!(text, " running {running} waiting {waiting} pages {pages} clock {}", tenant.clock(self.now))?;
        match tenant.started {
            Some(_) => writeln!(text, " runs"),
            None if self.is_capped(entry) => writeln!(text, " at its limit"),
            None => writeln!(text),
        }
    }

    fn write_adapter(&self, text: &mut String, adapter: &Adapter) -> std::fmt::Result {
        write!(text, "adapter {} tag {}: ", adapter.id, adapter.spec.tag)?;
        match adapter.residency {
            Residency::Failed { why } => write!(text, "{}", why.name())?,
            residency => write!(text, "{}", residency.name())?,
        }
        match adapter.residency {
            Residency::Vacant | Residency::Cold | Residency::Failed { .. } => {}
            Residency::Remote { asked } => write!(text, "{}", if asked { " asked" } else { "" })?,
            Residency::Loading { slot, since, layers, dropped } => {
                write!(text, " slot {slot} since {since} layers {layers} of {}", adapter.spec.layers)?;
                write!(text, "{} pages {}", if dropped { " dropped" } else { "" }, Numbers(&adapter.image))?;
            }
            Residency::Hot { slot, last_use } => {
                write!(text, " slot {slot} last-use {last_use} pages {}", Numbers(&adapter.image))?;
            }
        }
        match adapter.standing {
            Standing::Open => {}
            Standing::Draining => write!(text, " draining")?,
        }
        if adapter.pinned {
            write!(text, " pinned")?;
        }
        writeln!(text, ", running {} waiting {}", adapter.running, adapter.waiting)
    }

    fn write_running(&self, text: &mut String, entry: u32) -> std::fmt::Result {
        let request = &self.requests[entry];
        let RequestState::Running { line, computed, planned, .. } = request.state else { return Ok(()) };
        write!(text, "request {} {}: running line {line}", request.id, self.group(request.group))?;
        write!(text, " computed {computed} of {}", request.length())?;
        if planned > 0 {
            write!(text, " planned {planned}")?;
        }
        write!(text, " answer {} of {}", request.answered(), request.max_tokens)?;
        write!(text, " pages {}", Numbers(self.lines.pages(line)))?;
        match self.lines.cached(line).0 {
            0 => writeln!(text),
            cached => writeln!(text, " cached {cached}"),
        }
    }

    fn write_queue(&self, text: &mut String, group: u32) -> std::fmt::Result {
        if self.groups.waiting(group) == 0 {
            return Ok(());
        }
        write!(text, "queue {}:", self.group(group))?;
        for entry in self.groups.queues.iter(group) {
            let request = &self.requests[entry];
            write!(text, " {}", request.id)?;
            if matches!(request.state, RequestState::Preempted { .. }) {
                write!(text, "(preempted, answer {} of {})", request.answered(), request.max_tokens)?;
            }
        }
        if self.groups.waits.list_of(group).is_some() {
            let name = self.groups[group].name;
            let clock = self.tenants[name.tenant].clock(self.now);
            write!(text, ", waits {}", clock.saturating_sub(self.groups[group].since))?;
            write!(text, " of {}", self.bound_now(group))?;
        }
        writeln!(text)
    }

    fn group(&self, group: u32) -> GroupText {
        let name = self.groups[group].name;
        GroupText {
            tenant: self.tenants[name.tenant].id,
            adapter: name.adapter.map(|entry| self.adapters[entry].id),
            priority: name.priority,
        }
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
            pages_cached: self.pool.count(OwnerKind::Cached),
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
                waiting: adapter.waiting,
            }
        };
        self.adapters.sorted().into_iter().map(stats).collect()
    }

    /// The figures of each tenant, in the order of their numbers.
    pub fn tenant_stats(&self) -> Vec<TenantStats> {
        let stats = |entry: u32| {
            let Tenant { id, service, running, waiting, pages, .. } = self.tenants[entry];
            TenantStats { tenant: id, service, running, waiting, pages }
        };
        self.tenants.sorted().into_iter().map(stats).collect()
    }
}

/// `base` or the adapter's id; before it a tenant that isn't 0, behind it a priority that isn't the usual.
struct GroupText {
    tenant: TenantId,
    adapter: Option<AdapterId>,
    priority: Priority,
}

impl std::fmt::Display for GroupText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.tenant != 0 {
            write!(f, "tenant {} ", self.tenant)?;
        }
        match self.adapter {
            None => write!(f, "base")?,
            Some(adapter) => write!(f, "adapter {adapter}")?,
        }
        match self.priority {
            Priority::Normal => Ok(()),
            Priority::Low | Priority::High => write!(f, " {}", self.priority.name()),
        }
    }
}
