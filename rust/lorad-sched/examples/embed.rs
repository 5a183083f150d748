//! The loop around the scheduler, with a worker that only pretends to compute. `embed.txt` has what it prints.
//!
//!     cargo run -p lorad-sched --example embed

use std::error::Error;
use std::io::{stdout, Write};

use lorad_sched::plan::PlanView;
use lorad_sched::{AdapterSpec, Config, Core, Event, RequestSpec};

const STEP_US: u64 = 1_000;
/// Copying a page of adapter weights; other rows compute meanwhile.
const COPY_PAGE_US: u64 = 1_200;

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut stdout().lock())
}

/// Serves three requests of two tenants, whose adapters are cold at first.
pub fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut core = Core::new(Config { pages: 32, rows_max: 4, tokens_max: 16, ..Config::default() })?;
    // the tag comes back with each row: by it a worker sees that a slot holds the weights that the row wants
    let acme = core.register(AdapterSpec { tag: 7, pages: 1, tenant: 1, ..AdapterSpec::default() })?;
    let zenith = core.register(AdapterSpec { tag: 9, pages: 5, tenant: 2, ..AdapterSpec::default() })?;
    for (id, tenant, adapter) in [(1, 1, Some(acme)), (2, 2, Some(zenith)), (3, 2, None)] {
        let prompt = vec![10, 11, 12];
        core.add(0, RequestSpec { id, tenant, adapter, prompt, max_tokens: 3, ..RequestSpec::default() })?;
    }

    // memory of the worker: the plan is written into it, its sections are at fixed places
    let mut plan = vec![0; core.plan_layout().length()];
    let (mut copies, mut events, mut now) = (Vec::new(), Vec::new(), 0);
    while core.has_work() {
        now += STEP_US;
        while let Some(arrived) = copies.iter().position(|&(due, _)| due <= now) {
            core.page_in_done(now, copies.swap_remove(arrived).1)?;
        }
        if let Some(number) = core.step(now, &mut plan)? {
            let view = core.plan_layout().view(&plan);
            writeln!(out, "at {now} µs {view}")?;
            for load in view.page_ins() {
                copies.push((now + COPY_PAGE_US * load.pages.len() as u64, load.adapter));
            }
            core.commit(now, number, &compute(&view))?;
        } else {
            writeln!(out, "at {now} µs all who are left wait for a copy")?;
        }
        core.drain_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::AdapterHot { adapter, slot } => writeln!(out, "adapter {adapter} is in slot {slot}")?,
                Event::Token { request, token } => writeln!(out, "request {request} says {token}")?,
                Event::Finished { request, reason } => writeln!(out, "request {request}: {}", reason.name())?,
                _ => {}
            }
        }
    }
    write!(out, "{}", core.dump())?;
    Ok(())
}

/// One token for each row that samples, in the plan's order. A model would look at the row's tokens, the pages of its
/// line and its adapter's slot; this one says tag · 100 + position.
fn compute(plan: &PlanView) -> Vec<i32> {
    let rows = (0..plan.rows()).map(|row| plan.row(row)).filter(|row| row.sample);
    rows.map(|row| (row.adapter.map_or(0, |(_, tag)| tag) * 100 + row.start + row.count) as i32).collect()
}
