//! From the book of a run to its report.

use std::collections::BTreeMap;

use crate::book::{End, Record};
use crate::report::{Class, Numbers, Percentiles, Report};
use crate::run::Outcome;

/// The report of a run. `page_bytes` is 0 when nobody knows it.
pub fn report(name: &str, outcome: &Outcome, page_bytes: u64) -> Report {
    let records = &outcome.records;
    let mut tenants: BTreeMap<u32, Vec<&Record>> = BTreeMap::new();
    let mut adapters: BTreeMap<Option<u32>, Vec<&Record>> = BTreeMap::new();
    let mut refusals = BTreeMap::new();
    for record in records {
        tenants.entry(record.ask.tenant).or_default().push(record);
        adapters.entry(record.ask.adapter).or_default().push(record);
        if let Some(End::Refused(code)) = record.end {
            *refusals.entry(code).or_insert(0) += 1;
        }
    }
    let adapter_name = |adapter: Option<u32>| match adapter {
        None => "base".to_string(),
        Some(adapter) => format!("adapter {adapter}"),
    };
    let page_in_bytes = outcome.numbers.page_in_pages.saturating_mul(page_bytes);
    Report {
        name: name.to_string(),
        numbers: Numbers { page_in_bytes, ..outcome.numbers },
        all: class("all".to_string(), &records.iter().collect::<Vec<_>>()),
        tenants: tenants.iter().map(|(tenant, theirs)| class(format!("tenant {tenant}"), theirs)).collect(),
        adapters: adapters.iter().map(|(adapter, theirs)| class(adapter_name(*adapter), theirs)).collect(),
        refusals,
        dump: outcome.dump.clone(),
    }
}

fn class(name: String, records: &[&Record]) -> Class {
    let count = |wanted: fn(End) -> bool| {
        records.iter().filter(|record| record.end.is_some_and(wanted)).count() as u64
    };
    let finished = |end: End| matches!(end, End::Stop | End::Length);
    let times = |time: &dyn Fn(&Record) -> Option<u64>| {
        let since = |record: &&Record| time(record).map(|at_us| at_us.saturating_sub(record.arrived_us));
        Percentiles::of(&mut records.iter().filter_map(since).collect::<Vec<_>>())
    };
    Class {
        name,
        requests: records.len() as u64,
        refused: count(|end| matches!(end, End::Refused(_))),
        finished: count(finished),
        aborted: count(|end| end == End::Aborted),
        failed: count(|end| matches!(end, End::Failed(_))),
        tokens: records.iter().map(|record| u64::from(record.answered)).sum(),
        wait_us: times(&|record| record.admitted_us),
        ttft_us: times(&|record| record.first_us),
        total_us: times(&|record| record.ended_us.filter(|_| record.end.is_some_and(finished))),
    }
}
