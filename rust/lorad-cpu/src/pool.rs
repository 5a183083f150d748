//! A small thread pool for operators of a few microseconds.
//!
//! The caller works too. Each thread has a share of the tasks, always the same one for as many tasks, so that what it has in
//! its caches serves the next job too; it claims them one by one and then goes on with the others' shares, so an uneven or
//! disturbed thread does fewer.
//! Workers spin for [`SPIN`] after a job, since a step is a run of short jobs, and then park. `state` protects `job`:
//! a worker may read `job` only between adding itself to an open state and taking itself off, and the caller replaces
//! it only when the state is closed and nobody is in. A worker that comes too late finds the state closed and is never
//! waited for. A pool that is in use (another Python thread computes) makes the second caller work alone.
#![allow(unsafe_code)] // a borrowed closure is shared with threads that outlive it; see `Pool::run`

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker looks for the next job before it parks.
pub const SPIN: Duration = Duration::from_micros(50);
/// Tasks of equal cost that each thread gets, so that one disturbed thread holds up a small part only.
const BUNDLES_PER_THREAD: usize = 4;

const OPEN: u64 = 1 << 31;
const ENTERED: u64 = OPEN - 1;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// On a cache line of its own.
#[repr(align(64))]
struct Counter(AtomicUsize);

struct Shared {
    /// Job number in the upper half, `OPEN`, and how many workers are in.
    state: AtomicU64,
    job: UnsafeCell<Option<(*const Task<'static>, usize)>>,
    /// Of each thread, the caller first: the next task of its share.
    next: Box<[Counter]>,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is read and written only as the module header says; the closure behind the pointer is Sync.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Claims and runs tasks until none is left, those of `me` first.
    fn work(&self, me: usize, task: &Task<'_>, tasks: usize) {
        let threads = self.next.len();
        for owner in (me..threads).chain(0..me) {
            let end = tasks * (owner + 1) / threads;
            loop {
                let index = self.next[owner].0.fetch_add(1, SeqCst);
                if index >= end {
                    break;
                }
                task(index);
            }
        }
    }

    fn worker(&self, me: usize) {
        let mut seen = 0;
        loop {
            let mut idle_since = Instant::now();
            let mut state = self.state.load(SeqCst);
            let mut turns = 0u32;
            while state >> 32 == seen {
                if self.stop.load(SeqCst) {
                    return;
                }
                turns += 1;
                if turns.is_multiple_of(32) && idle_since.elapsed() > SPIN {
                    self.parked[me].store(true, SeqCst);
                    if self.state.load(SeqCst) >> 32 == seen && !self.stop.load(SeqCst) {
                        std::thread::park();
                    }
                    self.parked[me].store(false, SeqCst);
                    idle_since = Instant::now();
                } else {
                    std::hint::spin_loop();
                }
                state = self.state.load(SeqCst);
            }
            seen = state >> 32;
            if state & OPEN == 0 || self.state.compare_exchange(state, state + 1, SeqCst, SeqCst).is_err() {
                // Closed already, or another worker came or went: look again without forgetting the job if it's open.
                if state & OPEN != 0 {
                    seen = seen.wrapping_sub(1);
                }
                continue;
            }
            // SAFETY: this worker is counted in an open state, so the job stays until it takes itself off below.
            if let Some((task, tasks)) = unsafe { *self.job.get() } {
                // SAFETY: as above; `run` doesn't return before this worker has left.
                let task = unsafe { &*task };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.work(me + 1, task, tasks))) {
                    *self.panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                }
            }
            self.state.fetch_sub(1, SeqCst);
        }
    }
}

/// Closes the job and waits for the workers inside, also when the caller's own share panicked.
struct Finish<'shared>(&'shared Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        // A panicking caller leaves tasks unclaimed: nobody may start one any more.
        self.0.next.iter().for_each(|next| next.0.store(usize::MAX / 2, SeqCst));
        self.0.state.fetch_and(!OPEN, SeqCst);
        let mut turns = 0u32;
        while self.0.state.load(SeqCst) & ENTERED != 0 {
            turns += 1;
            if turns.is_multiple_of(4096) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Threads that run the tasks of one job at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] being one of them. A thread that can't be started is
    /// done without.
    pub fn new(threads: usize) -> Self {
        let count = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: (0..threads.max(1)).map(|_| Counter(AtomicUsize::new(0))).collect(),
            stop: AtomicBool::new(false),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            panicked: Mutex::new(None),
        });
        let workers = (0..count)
            .filter_map(|me| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("lorad-cpu-{me}"))
                    .spawn(move || shared.worker(me))
                    .ok()
            })
            .collect();
        Self { shared, workers, busy: Mutex::new(()) }
    }

    /// Threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0) .. task(tasks - 1)`, in any order, on any thread; returns when all have ended. A panic in a task
    /// goes on in the caller.
    pub fn run(&self, tasks: usize, task: &Task<'_>) {
        let guard = if self.workers.is_empty() || tasks < 2 { None } else { self.claim() };
        if guard.is_none() {
            (0..tasks).for_each(task);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `Finish` waits, before this function returns or unwinds, until no worker
        // is inside, and the closed state lets none in.
        let task_static: *const Task<'static> =
            unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: the state is closed and empty and `busy` is held: nobody reads the job.
        unsafe { *shared.job.get() = Some((task_static, tasks)) };
        let threads = shared.next.len();
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(tasks * thread / threads, SeqCst);
        }
        let number = (shared.state.load(SeqCst) >> 32) + 1;
        shared.state.store(number << 32 | OPEN, SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(SeqCst) {
                worker.thread().unpark();
            }
        }
        let finish = Finish(shared);
        shared.work(0, task, tasks);
        drop(finish);
        if let Some(payload) = shared.panicked.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(payload);
        }
    }

    /// The pool for one job; `None`: another caller has it. A job that panicked has left nothing half done: `Finish`
    /// waited for its workers and closed it, and the next job replaces the rest. So a poisoned lock is a free one.
    fn claim(&self) -> Option<MutexGuard<'_, ()>> {
        match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Runs `task(range)` over consecutive ranges of `0..costs.len()` with about equal sums of `costs`.
    pub fn run_balanced(&self, costs: &[usize], task: &(dyn Fn(Range<usize>) + Sync)) {
        if self.workers.is_empty() {
            return task(0..costs.len());
        }
        let bundles = bundles(costs, self.threads() * BUNDLES_PER_THREAD);
        self.run(bundles.len(), &|index| task(bundles[index].clone()));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already handed to the caller of `run`.
            let _ = worker.join();
        }
    }
}

/// Cuts `0..costs.len()` into at most `parts` (+1) consecutive ranges of about equal cost.
pub(crate) fn bundles(costs: &[usize], parts: usize) -> Vec<Range<usize>> {
    let total: usize = costs.iter().sum();
    let share = total.div_ceil(parts).max(1);
    let mut found = Vec::with_capacity(parts + 1);
    let (mut begin, mut sum) = (0, 0);
    for (index, cost) in costs.iter().enumerate() {
        // Close before an item that would overshoot by more than it fills.
        if sum > 0 && sum + cost / 2 >= share {
            found.push(begin..index);
            (begin, sum) = (index, 0);
        }
        sum += cost;
    }
    if begin < costs.len() {
        found.push(begin..costs.len());
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for tasks in (0..60).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|index| {
                    counts[index].fetch_add(1, SeqCst);
                });
                assert!(counts.iter().all(|count| count.load(SeqCst) == 1));
                if tasks % 20 == 0 {
                    std::thread::sleep(SPIN * 4); // let workers park
                }
            }
        }
    }

    #[test]
    fn many_short_jobs_from_two_callers() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        pool.run(7, &|index| {
                            sum.fetch_add(index, SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(SeqCst), 2 * 2000 * 21);
    }

    /// Whether several threads are at work at once: each task waits until another thread has begun one.
    fn works_in_parallel(pool: &Pool) -> bool {
        let seen = Mutex::new(HashSet::new());
        pool.run(2, &|_| {
            seen.lock().unwrap().insert(std::thread::current().id());
            let begun = Instant::now();
            while seen.lock().unwrap().len() < 2 && begun.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
        });
        let threads = seen.into_inner().unwrap().len();
        threads == 2
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        assert!(works_in_parallel(&pool));
        for round in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|index| assert!(index != round % 20, "task {index}"));
            }));
            assert!(result.is_err());
        }
        let count = AtomicUsize::new(0);
        pool.run(20, &|_| {
            count.fetch_add(1, SeqCst);
        });
        assert_eq!(count.load(SeqCst), 20);
        assert!(works_in_parallel(&pool), "alone after a panic");
    }

    #[test]
    fn bundles_cover_in_order() {
        for parts in [1, 2, 8] {
            for costs in [vec![], vec![5], vec![1; 100], vec![100, 1, 1, 1, 50, 3], vec![0, 0, 0]] {
                let found = bundles(&costs, parts);
                let flat: Vec<usize> = found.iter().flat_map(Clone::clone).collect();
                assert_eq!(flat, (0..costs.len()).collect::<Vec<_>>());
            }
        }
    }
}
