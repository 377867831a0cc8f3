//! A few threads that stay, so that an operator costs a wake-up and not a start.
//!
//! [`Pool::parallel_for`] hands out indices; [`Pool::for_blocks`] hands out
//! disjoint rectangles of one matrix, which is how a kernel's threads own the
//! output they write.
#![expect(
    unsafe_code,
    reason = "a job borrows from the caller's stack, and its rectangles share rows"
)]

mod blocks;

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub use blocks::Block;
use blocks::Grid;

/// How often a thread looks for work, or for the end of it, before it sleeps:
/// a few microseconds, the distance between two operators of a small model.
const SPINS: usize = 400;

/// What every worker runs, given its own index. The lifetime is erased; see [`Pool::run`].
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointee is `Sync`, and `Pool::run` keeps it alive until no worker uses it.
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    job: Option<Job>,
    panic: Option<Box<dyn Any + Send>>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Counts jobs; changes only under the lock, read outside it only as a hint.
    generation: AtomicUsize,
    /// Workers that have not finished the job; likewise.
    running: AtomicUsize,
    /// Workers that have begun to wait for jobs.
    ready: AtomicUsize,
    start: Condvar,
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, and State has no invariant to break.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, worker: usize) {
        self.ready.fetch_add(1, Ordering::Relaxed);
        let mut seen = 0;
        loop {
            spin_until(|| self.generation.load(Ordering::Relaxed) != seen);
            let mut state = self.lock();
            while self.generation.load(Ordering::Relaxed) == seen && !state.stop {
                state = self
                    .start
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            seen = self.generation.load(Ordering::Relaxed);
            let Some(job) = state.job else { return };
            drop(state);
            let result = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: `Pool::run` does not return before `running`, which counts
                // this worker until after this call, is zero.
                let job = unsafe { &*job.0 };
                job(worker);
            }));
            let mut state = self.lock();
            if let Err(payload) = result {
                state.panic.get_or_insert(payload);
            }
            if self.running.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.done.notify_one();
            }
        }
    }
}

fn spin_until(condition: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if condition() {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Threads that wait for work; joined when dropped.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> io::Result<Pool> {
        let mut pool = Pool {
            shared: Arc::default(),
            workers: Vec::new(),
        };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("estream-{worker}"));
            pool.workers
                .push(thread.spawn(move || shared.work(worker))?);
        }
        // One that dies before it works, for want of memory, would be waited for for ever.
        while pool.shared.ready.load(Ordering::Relaxed) < pool.workers.len() {
            if pool.workers.iter().any(JoinHandle::is_finished) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Threads that run a job, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job` once on every thread; worker 0 is the calling thread.
    /// The pool is borrowed mutably: a job cannot start another on its own pool.
    ///
    /// # Panics
    /// With the first panic of a job, after every worker has finished.
    pub fn run(&mut self, job: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return job(0);
        }
        let short: *const (dyn Fn(usize) + Sync + '_) = &job;
        // SAFETY: only the lifetime differs, and no worker dereferences the pointer
        // after this function has returned: it returns, or unwinds, only once `running`
        // is zero and the job is withdrawn.
        let long: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(short) };
        let mut state = self.shared.lock();
        state.job = Some(Job(long));
        self.shared
            .running
            .store(self.workers.len(), Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.shared.start.notify_all();

        let own = catch_unwind(AssertUnwindSafe(|| job(0)));

        spin_until(|| self.shared.running.load(Ordering::Relaxed) == 0);
        let mut state = self.shared.lock();
        while self.shared.running.load(Ordering::Relaxed) != 0 {
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.job = None;
        let theirs = state.panic.take();
        drop(state);
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Calls `job(index, worker)` once for every index below `count`, each on
    /// whichever thread is free.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn parallel_for(&mut self, count: usize, job: impl Fn(usize, usize) + Sync) {
        if count <= 1 || self.workers.is_empty() {
            return (0..count).for_each(|index| job(index, 0));
        }
        let next = AtomicUsize::new(0);
        self.run(|worker| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                job(index, worker);
            }
        });
    }

    /// Cuts `data`, rows of `width` elements, into rectangles of at most
    /// `block_rows` × `block_cols` and calls `job(block, worker)` once for each.
    ///
    /// # Panics
    /// As [`Pool::run`]; also if `data` is not whole rows or a block is empty.
    pub fn for_blocks(
        &mut self,
        data: &mut [f32],
        width: usize,
        (block_rows, block_cols): (usize, usize),
        job: impl Fn(Block<'_>, usize) + Sync,
    ) {
        let grid = Grid::new(data, width, block_rows, block_cols);
        self.parallel_for(grid.count(), |index, worker| {
            // SAFETY: `parallel_for` passes every index once.
            let block = unsafe { grid.block(index) };
            job(block, worker);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.start.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a job and has none of its own to report.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_run_once_whatever_the_number_of_threads() {
        for threads in [0, 1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads.max(1));
            for count in [0, 1, 2, 7, 100] {
                let runs: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.parallel_for(count, |index, worker| {
                    assert!(worker < threads.max(1));
                    runs[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|run| run.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_short_jobs_in_a_row_lose_none() {
        let mut pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..5000 {
            pool.run(|worker| {
                sum.fetch_add(worker + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 5000 * 6);
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let finished = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker| {
                    if worker == bad {
                        resume_unwind(Box::new(worker));
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert_eq!(*caught.unwrap_err().downcast::<usize>().unwrap(), bad);
            assert_eq!(finished.into_inner(), 2);
        }
        let ran = AtomicUsize::new(0);
        pool.run(|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 3);
    }

    #[test]
    fn blocks_cover_a_matrix_once() {
        for threads in [1, 3] {
            let mut pool = Pool::new(threads).unwrap();
            for (rows, width, block) in [
                (5, 7, (2, 3)),
                (4, 8, (4, 8)),
                (1, 9, (9, 2)),
                (0, 3, (1, 1)),
            ] {
                let mut data = vec![0.0; rows * width];
                pool.for_blocks(&mut data, width, block, |mut block, _| {
                    for i in 0..block.rows() {
                        let (row, col) = (block.first_row() + i, block.first_col());
                        for (j, x) in block.row(i).iter_mut().enumerate() {
                            *x += (row * width + col + j) as f32 + 1.0;
                        }
                    }
                });
                let expected: Vec<_> = (0..rows * width).map(|i| i as f32 + 1.0).collect();
                assert_eq!(data, expected);
            }
        }
    }
}
