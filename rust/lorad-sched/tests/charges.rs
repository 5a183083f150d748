//! What tenants are charged: each step's parts of the cost model once, whatever the order in which rows were chosen.
// a test ends by panicking, helpers of tests too
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)] // this file needs its numbers only
mod common;

use std::collections::{BTreeMap, HashMap};

use common::Random;
use lorad_sched::snapshot::Snapshot;
use lorad_sched::{
    AdapterId, AdapterSpec, Config, Core, Costs, Event, Priority, RequestSpec, TenantSpec, SAMPLE_FAILED,
};

const TENANTS: u32 = 4;

/// Enough of everything but rows and tokens, so that within a step a service only moves by charges.
fn config(random: &mut Random) -> Config {
    let rows_max = 1 + random.below(9);
    let part =
        |random: &mut Random, limit: u32| if random.chance(25) { 0 } else { random.below(limit).into() };
    Config {
        pages: 1024,
        page_tokens: 1 + random.below(5),
        rows_max,
        rows_reserved: random.below(rows_max.div_ceil(2)),
        tokens_max: rows_max + random.below(24),
        prefill_chunk_max: 1 + random.below(9),
        slots_max: 8,
        adapters_step_max: 1 + random.below(6),
        page_ins_max: 1 + random.below(3),
        page_in_first_us: [0, 1500][random.below(2) as usize],
        vocab: 10,
        prefix_cache: random.chance(50),
        urgent_after_us: u64::MAX,
        quantum_us: random.below(6000).into(),
        costs: Costs {
            step_ns: part(random, 3_000_000),
            few_tokens: part(random, 6),
            many_ns: part(random, 900_000),
            head_ns: part(random, 600_000),
            token_ns: part(random, 90_000),
            sample_ns: part(random, 50_000),
            context_ns: part(random, 1000),
            adapter_page_ns: part(random, 40_000),
            adapter_token_page_ns: part(random, 9000),
            page_in_ns: part(random, 900_000),
            page_in_page_ns: part(random, 90_000),
            beside_page_ns: part(random, 50_000),
        },
        ..Config::default()
    }
}

fn services(core: &Core) -> BTreeMap<u32, u64> {
    let snapshot: Snapshot = core.dump().parse().unwrap();
    snapshot.tenants.iter().map(|tenant| (tenant.tenant, tenant.service)).collect()
}

/// An adapter that any tenant may ask for, and one of each tenant's own. The shared one is hot before others ask for it, so that a
/// page-in is always charged to its owner.
#[test]
fn a_step_charges_each_part_of_its_cost_once() {
    let (mut shared_rows, mut page_ins) = (0, 0);
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let config = config(&mut random);
        let costs = config.costs;
        let mut core = Core::new(config).unwrap();
        let mut plan = vec![0; core.plan_layout().length()];
        let mut adapters: Vec<(AdapterId, u32)> = Vec::new();
        for tenant in 0..TENANTS {
            let spec = TenantSpec { weight: 1, ..TenantSpec::default() };
            core.set_tenant(tenant, spec).unwrap();
            let pages = 1 + random.below(5);
            let spec = AdapterSpec { tag: 1 + tenant, pages, tenant, ..AdapterSpec::default() };
            adapters.push((core.register(spec).unwrap(), pages));
        }
        let (mut now, mut id, mut shared_hot) = (0, 0, false);
        let mut tenant_of: HashMap<u64, u32> = HashMap::new();
        let mut lines: HashMap<u32, u64> = HashMap::new();
        let mut events = Vec::new();
        for round in 0..200 {
            for _ in 0..random.below(12u32.saturating_sub(core.stats().waiting).clamp(1, 4)) {
                let tenant = random.below(TENANTS);
                let adapter = match random.below(3) {
                    0 => None,
                    1 if shared_hot || tenant == 0 => Some(adapters[0].0),
                    _ => Some(adapters[tenant as usize].0),
                };
                id += 1;
                let spec = RequestSpec {
                    id,
                    tenant,
                    adapter,
                    prompt: (0..1 + random.below(30)).map(|_| random.below(2)).collect(),
                    max_tokens: 1 + random.below(12),
                    priority: [Priority::Low, Priority::Normal, Priority::High][random.below(3) as usize],
                    ..RequestSpec::default()
                };
                tenant_of.insert(id, tenant);
                core.add(now, spec).unwrap();
            }
            if random.chance(10) {
                core.abort(now, 1 + u64::from(random.below(id as u32 + 1)));
            }
            now += 1 + u64::from(random.below(1000));
            let before = services(&core);
            let number = core.step(now, &mut plan).unwrap();
            let after = services(&core);
            core.drain_events(&mut events);
            for event in events.drain(..) {
                if let Event::Admitted { request, line } = event {
                    lines.insert(line, request);
                }
            }
            let Some(number) = number else {
                assert_eq!(before, after, "seed {seed}");
                continue;
            };
            let view = core.plan_layout().view(&plan);
            let mut expected = before;
            let rows: Vec<_> = (0..view.rows()).map(|row| view.row(row)).collect();
            let tokens = rows.iter().map(|row| u64::from(row.count)).sum();
            let step = costs.shared_ns(tokens, rows.iter().any(|row| row.sample));
            for row in &rows {
                let pages = row.adapter.map_or(0, |(_, tag)| adapters[tag as usize - 1].1);
                let beside = rows.iter().filter(|other| other.adapter == row.adapter).count();
                let bytes = row.adapter.map_or(0, |_| costs.adapter_ns(pages) / beside as u64);
                let own = costs.row_ns(row.start, row.count, row.sample, pages);
                let tenant = tenant_of[&lines[&row.line]];
                *expected.get_mut(&tenant).unwrap() += own + bytes + step / rows.len() as u64;
                shared_rows += u32::from(row.adapter.is_some_and(|(_, tag)| tag != tenant + 1));
            }
            let mut loads = Vec::new();
            for load in view.page_ins() {
                let pages = load.pages.len() as u32;
                *expected.get_mut(&(load.tag - 1)).unwrap() += costs.page_in_ns(pages);
                loads.push(load.adapter);
                page_ins += 1;
            }
            assert_eq!(after, expected, "seed {seed}, plan {number}:\n{view}");
            let samples: Vec<i32> = (0..view.samples())
                .map(|_| if random.chance(3) { SAMPLE_FAILED } else { random.below(2) as i32 })
                .collect();
            if random.chance(95) {
                core.commit(now, number, &samples).unwrap();
            } else {
                core.commit_failed(now, number).unwrap();
            }
            for adapter in loads {
                core.page_in_done(now, adapter).unwrap();
                shared_hot |= adapter == adapters[0].0;
            }
            if round % 20 == 0 {
                core.check().unwrap();
            }
        }
        let counters = core.stats().counters;
        assert_eq!(
            (counters.preemptions, counters.evictions),
            (0, 0),
            "seed {seed}: not what is counted here"
        );
    }
    assert!(shared_rows > 500 && page_ins > 50, "{shared_rows} {page_ins}");
}
