//! A host that records what it does.

use lorad_sched::trace::{Log, Recorder};
use lorad_sched::{
    AdapterId, AdapterSpec, Config, Eviction, Order, Policy, Priority, RequestSpec, TenantSpec, SAMPLE_FAILED,
};

use crate::common::Random;

const STOPS: [u32; 2] = [2, 9];

/// Pools and limits so small that everything collides.
pub fn config(seed: u64) -> Config {
    let mut random = Random::new(seed ^ 0x0072_ace5);
    let rows_max = 1 + random.below(5);
    Config {
        pages: 8 + random.below(8),
        pages_reserved: random.below(2),
        page_tokens: 1 + random.below(4),
        rows_max,
        rows_reserved: random.below(rows_max.div_ceil(2)),
        tokens_max: 6 + random.below(8),
        prefill_chunk_max: 1 + random.below(7),
        slots_max: 2 + random.below(4),
        adapters_step_max: 1 + random.below(4),
        page_ins_max: 1 + random.below(3),
        adapters_max: 6,
        waiting_max: 8,
        sequence_tokens_max: 24,
        stop_tokens_max: 2,
        vocab: 12,
        tenants_max: 4,
        urgent_after_us: u64::from(random.below(20_000)),
        preempt_after_tokens: 1 + random.below(3),
        preempt_after_us: random.below(4000).into(),
        quantum_us: random.below(6000).into(),
        pinned_pages_max: 2 + random.below(2),
        half_life_us: 50_000,
        prefix_cache: random.chance(75),
        share_base_prefix: random.chance(30),
        policy: Policy {
            order: [Order::Fair, Order::Fair, Order::Arrival, Order::Affinity][random.below(4) as usize],
            eviction: [Eviction::Cost, Eviction::Lru][random.below(2) as usize],
            ..Policy::default()
        },
        // drawn last, so that the worlds stay what they were without it
        page_in_first_us: [0, 1000, 100_000][random.below(3) as usize],
        ..Config::default()
    }
}

/// How many worlds: LORAD_SEEDS, or the usual number.
pub fn seeds(usual: u64) -> u64 {
    std::env::var("LORAD_SEEDS").map_or(usual, |text| text.parse().unwrap())
}

/// What the core said, and its state, after each of its inputs.
pub type Transcript = Vec<String>;

/// A host that does whatever comes to its mind: calls in the wrong state, unknown ids and wrong buffers included.
pub fn record(seed: u64, operations: u32) -> (Recorder<String>, Transcript) {
    let mut random = Random::new(seed);
    let mut core = Recorder::new(config(seed), String::new(), None).unwrap();
    let mut plan = vec![0; core.plan_layout().length()];
    let (mut transcript, mut events, mut loading) = (Transcript::new(), Vec::new(), Vec::new());
    let (mut now, mut flight, mut samples, mut next) = (0u64, 0u64, 0usize, 1u64);
    core.remark("a remark\nof two lines, with = and ,");
    for _ in 0..operations {
        now += u64::from(random.below(500));
        if random.chance(2) {
            now -= now.min(700); // the core takes the latest time that it was given
        }
        let adapter = AdapterId::from_number(1 + random.below(7));
        let answer = match random.below(100) {
            0..=3 => {
                let spec = AdapterSpec {
                    tag: random.below(5),
                    pages: random.below(6),
                    layers: 2,
                    tenant: random.below(2),
                    weight: 1 + random.below(200),
                    remote: random.chance(30),
                };
                format!("{:?}", core.register(spec).map(|adapter| format!("adapter {adapter}")))
            }
            4 => {
                core.unregister(now, adapter);
                "done".to_string()
            }
            5..=27 => {
                let id = if random.chance(5) { next / 2 } else { next };
                next += 1;
                let spec = RequestSpec {
                    id,
                    tenant: random.below(3),
                    adapter: Some(adapter).filter(|_| random.chance(60)),
                    prompt: prompt(&mut random),
                    max_tokens: random.below(9),
                    stop_tokens: STOPS[..random.below(3) as usize].to_vec(),
                    priority: [Priority::Normal, Priority::Low, Priority::High][random.below(3) as usize],
                    deadline: random.chance(5).then(|| now + u64::from(random.below(20_000))),
                    after: random.chance(5).then(|| id.saturating_sub(1)),
                    fresh: random.chance(5),
                };
                format!("{:?}", core.add(now, spec))
            }
            28 => {
                let spec = TenantSpec {
                    weight: random.below(300),
                    running_max: if random.chance(30) { 1 } else { u32::MAX },
                    waiting_max: if random.chance(30) { 2 } else { u32::MAX },
                    ..TenantSpec::default()
                };
                format!("{:?}", core.set_tenant(random.below(6), spec))
            }
            29 => match random.below(5) {
                0 => format!("{:?}", core.pin(now, adapter, random.chance(70))),
                1 => format!("{:?}", core.prewarm(now, adapter)),
                2 => format!("{:?}", core.page_in_reached(now, adapter, random.below(3))),
                3 => format!("{:?}", core.page_in_dropped(now, adapter)),
                _ => format!("{:?}", core.fetch_failed(now, adapter)),
            },
            30..=33 => {
                core.abort(now, next.saturating_sub(u64::from(random.below(8))));
                "done".to_string()
            }
            34..=65 => {
                let made = match random.below(40) {
                    0 => core.step(now, &mut [0; 3]),
                    _ => core.step(now, &mut plan),
                };
                if let Ok(Some(number)) = made {
                    let view = core.plan_layout().view(&plan);
                    loading.extend(view.page_ins().map(|load| load.adapter));
                    (flight, samples) = (number, view.samples());
                }
                format!("{made:?}")
            }
            66..=90 => {
                let token = |random: &mut Random| match random.below(30) {
                    0 => SAMPLE_FAILED,
                    _ => random.below(12) as i32,
                };
                let mut sampled: Vec<i32> = (0..samples).map(|_| token(&mut random)).collect();
                match random.below(40) {
                    0 => sampled.push(3),
                    1 => sampled.fill(12),
                    2 => sampled.fill(-7),
                    _ => {}
                }
                let number = if random.chance(3) { flight + 1 } else { flight };
                format!("{:?}", core.commit(now, number, &sampled))
            }
            91 => format!("{:?}", core.commit_failed(now, flight)),
            _ => {
                let adapter = match loading.is_empty() {
                    true => adapter,
                    false => loading.swap_remove(random.below(loading.len() as u32) as usize),
                };
                match random.below(10) {
                    0 => format!("{:?}", core.page_in_failed(now, adapter)),
                    1..=3 => format!("{:?}", core.arrived(now, AdapterId::from_number(1 + random.below(7)))),
                    _ => format!("{:?}", core.page_in_done(now, adapter)),
                }
            }
        };
        core.drain_events(&mut events);
        let plan = core.plan_layout().view(&plan);
        transcript.push(format!("{answer}\n{plan}\n{events:?}\n{}", core.dump()));
        events.clear();
        core.check().unwrap();
    }
    assert_eq!(core.log(), Log::Open);
    (core, transcript)
}

/// Few distinct beginnings, so that there is something to share; now and then an id that no token has.
fn prompt(random: &mut Random) -> Vec<u32> {
    let mut prompt: Vec<u32> =
        (0..random.below(14)).map(|place| (place * 5 + random.below(2)) % 12).collect();
    if random.chance(3) {
        prompt.push(12 + random.below(3));
    }
    prompt
}
