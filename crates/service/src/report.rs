//! What the service manager is told, and when: a state machine that is given the time and what the service looks like.
//!
//! | stage | what is said |
//! |---|---|
//! | loading | `STATUS=`; `EXTEND_TIMEOUT_USEC=` whenever bytes moved or another phase began, so that a load of any length may finish and one that is stuck ends at the manager's limit |
//! | ready | `READY=1` once; `WATCHDOG=1` while the engine is idle or its step takes no longer than it may |
//! | stuck | nothing that feeds the watchdog; `WATCHDOG=trigger` once, which has the manager end the process at once, and not after the watchdog's time has run out too |
//! | draining | `STOPPING=1` once; `EXTEND_TIMEOUT_USEC=` while requests are being finished |
//!
//! Idle is progress. A step that takes long is progress as well, until it takes longer than `--step-timeout`: no watchdog's interval,
//! however short, ends a busy service, and none, however long, keeps a stuck one.
//!
//! Protocol: `sd_notify(3)`. systemd never shortens a time by `EXTEND_TIMEOUT_USEC`, so what is sent is the least that is left.

use std::time::{Duration, Instant};

/// A phase of a start that tells no progress (opening, compiling kernels, capturing graphs) may take so long.
const PHASE_PATIENCE: Duration = Duration::from_secs(600);
/// Bytes that move must move again within this time.
const MOVE_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two extensions at least.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
/// Time that a drain asks for each time.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two lines of status at least.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// What the service looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// Where it is in its life.
    pub stage: Stage,
    /// How long the engine's step has been running; `None`: it is idle.
    pub step: Option<Duration>,
    /// For how long the threads that answer requests have not come round.
    pub silence: Duration,
    /// Requests that are being served.
    pub in_flight: usize,
}

/// A stage of the service's life.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// On the way to its first request.
    Loading {
        /// What is being done.
        phase: &'static str,
        /// Bytes of weights that are loaded, and all.
        done: u64,
        /// All bytes of weights.
        total: u64,
        /// A number that grows with all work that is done, in any phase.
        work: u64,
    },
    /// Requests are served.
    Ready,
    /// Requests are finished, and no others taken.
    Draining,
    /// The engine is gone.
    Failed,
}

/// What was said so far.
#[derive(Debug)]
pub struct Reporter {
    watchdog: Option<Duration>,
    step_timeout: Duration,
    began: Instant,
    is_ready: bool,
    is_stopping: bool,
    is_stuck: bool,
    fed: Option<Instant>,
    extended: Option<Instant>,
    progress: Option<(&'static str, u64)>,
    /// Progress was made since the last extension.
    owes_extension: bool,
    /// When progress was last seen.
    moved: Instant,
    status: Option<(Instant, String)>,
}

impl Reporter {
    /// A service that starts now. `watchdog` is the interval in which the manager wants to hear from it.
    pub fn new(now: Instant, watchdog: Option<Duration>, step_timeout: Duration) -> Self {
        Self {
            watchdog,
            step_timeout,
            began: now,
            is_ready: false,
            is_stopping: false,
            is_stuck: false,
            fed: None,
            extended: None,
            progress: None,
            owes_extension: false,
            moved: now,
            status: None,
        }
    }

    /// How often [`Self::tick`] wants to be called.
    pub fn interval(&self) -> Duration {
        let quarter = self.watchdog.map(|watchdog| watchdog / 4);
        quarter
            .unwrap_or(STATUS_EVERY)
            .clamp(Duration::from_millis(10), STATUS_EVERY)
    }

    /// Whether the service makes progress, or has nothing to do. Call it after [`Self::tick`].
    pub fn is_well(&self, now: Instant) -> bool {
        match self.is_ready {
            true => !self.is_stuck,
            false => now.duration_since(self.moved) <= PHASE_PATIENCE,
        }
    }

    /// The assignments that are due.
    pub fn tick(&mut self, now: Instant, view: &View) -> Vec<String> {
        let mut due = Vec::new();
        let status = match view.stage {
            Stage::Loading {
                phase,
                done,
                total,
                work,
            } => {
                self.loading(now, (phase, work), &mut due);
                self.loading_status(now, phase, done, total)
            }
            Stage::Ready => self.ready(now, view, &mut due),
            Stage::Draining => {
                self.draining(now, view, &mut due);
                format!("draining: {}", requests(view.in_flight))
            }
            Stage::Failed => "the engine failed".to_owned(),
        };
        let is_new = match &self.status {
            None => true,
            // A change of stage is told at once.
            Some((at, told)) => {
                *told != status && (!due.is_empty() || now.duration_since(*at) >= STATUS_EVERY)
            }
        };
        if is_new {
            due.push(format!("STATUS={status}"));
            self.status = Some((now, status));
        }
        due
    }

    fn loading(&mut self, now: Instant, progress: (&'static str, u64), due: &mut Vec<String>) {
        let is_new_phase = self.progress.is_none_or(|(phase, _)| phase != progress.0);
        if self.progress != Some(progress) {
            self.progress = Some(progress);
            self.moved = now;
            self.owes_extension = true;
        }
        let is_due = self
            .extended
            .is_none_or(|at| now.duration_since(at) >= EXTEND_EVERY);
        if is_new_phase || (self.owes_extension && is_due) {
            self.owes_extension = false;
            self.extended = Some(now);
            due.push(extend(match is_new_phase {
                true => PHASE_PATIENCE,
                false => MOVE_PATIENCE,
            }));
        }
    }

    fn loading_status(&self, now: Instant, phase: &str, done: u64, total: u64) -> String {
        if total == 0 || done == 0 {
            return format!("loading: {phase}");
        }
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let rate = gb(done) / now.duration_since(self.began).as_secs_f64().max(1e-3);
        format!(
            "loading: {phase}, {:.1} of {:.1} GB, {rate:.1} GB/s",
            gb(done),
            gb(total)
        )
    }

    fn ready(&mut self, now: Instant, view: &View, due: &mut Vec<String>) -> String {
        if !self.is_ready {
            self.is_ready = true;
            due.push("READY=1".to_owned());
        }
        let stuck = match view.step {
            Some(step) if step > self.step_timeout => Some(("a step", step)),
            _ if view.silence > self.step_timeout => Some(("the HTTP side", view.silence)),
            _ => None,
        };
        if let Some((what, time)) = stuck {
            if !self.is_stuck && self.watchdog.is_some() {
                due.push("WATCHDOG=trigger".to_owned());
            }
            self.is_stuck = true;
            let (time, limit) = (time.as_secs_f64(), self.step_timeout.as_secs_f64());
            return format!("stuck: {what} has run for {time:.1} s, and may for {limit:.1} s");
        }
        self.is_stuck = false;
        if let Some(watchdog) = self.watchdog {
            let is_due = self
                .fed
                .is_none_or(|at| now.duration_since(at) >= watchdog / 4);
            if is_due {
                self.fed = Some(now);
                due.push("WATCHDOG=1".to_owned());
            }
        }
        format!("serving: {}", requests(view.in_flight))
    }

    fn draining(&mut self, now: Instant, view: &View, due: &mut Vec<String>) {
        if !self.is_stopping {
            self.is_stopping = true;
            self.extended = None;
            due.push("STOPPING=1".to_owned());
        }
        let is_due = self
            .extended
            .is_none_or(|at| now.duration_since(at) >= EXTEND_EVERY);
        if is_due && view.in_flight > 0 {
            self.extended = Some(now);
            due.push(extend(DRAIN_PATIENCE));
        }
    }
}

fn extend(by: Duration) -> String {
    format!("EXTEND_TIMEOUT_USEC={}", by.as_micros())
}

fn requests(n: usize) -> String {
    match n {
        1 => "1 request".to_owned(),
        n => format!("{n} requests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn view(stage: Stage) -> View {
        View {
            stage,
            step: None,
            silence: Duration::ZERO,
            in_flight: 0,
        }
    }

    fn loading(phase: &'static str, work: u64) -> View {
        view(Stage::Loading {
            phase,
            done: work,
            total: 4_000_000_000,
            work,
        })
    }

    fn has(due: &[String], word: &str) -> bool {
        due.iter().any(|line| line == word)
    }

    fn extensions(due: &[String]) -> Vec<&str> {
        let times = due
            .iter()
            .filter_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
        times.collect()
    }

    #[test]
    fn a_load_gets_more_time_while_bytes_move_and_none_when_they_do_not() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, None, SECOND * 120);
        let mut at = |seconds: u32, view: View| reporter.tick(start + SECOND * seconds, &view);
        let due = at(0, loading("weights", 0));
        assert_eq!(extensions(&due), ["600000000"]);
        assert!(!has(&due, "READY=1"), "{due:?}");
        assert!(extensions(&at(1, loading("weights", 1_000_000_000))).is_empty());
        let due = at(6, loading("weights", 3_000_000_000));
        assert_eq!(extensions(&due), ["60000000"]);
        let status = "STATUS=loading: weights, 3.0 of 4.0 GB, 0.5 GB/s";
        assert!(has(&due, status), "{due:?}");
        for second in [12, 60, 600] {
            let due = at(second, loading("weights", 3_000_000_000));
            assert!(extensions(&due).is_empty(), "{due:?}");
        }
        let due = at(601, loading("self-test", 3_000_000_000));
        assert_eq!(extensions(&due), ["600000000"]);
    }

    #[test]
    fn a_load_that_stands_still_is_not_well() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, None, SECOND);
        reporter.tick(start, &loading("weights", 1));
        assert!(reporter.is_well(start + PHASE_PATIENCE));
        assert!(!reporter.is_well(start + PHASE_PATIENCE + SECOND));
        reporter.tick(start + PHASE_PATIENCE, &loading("weights", 2));
        assert!(reporter.is_well(start + PHASE_PATIENCE + SECOND));
    }

    #[test]
    fn it_is_ready_once_and_idle_is_progress() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, Some(SECOND * 4), SECOND * 120);
        assert_eq!(reporter.interval(), SECOND);
        let mut at = |seconds: u32| reporter.tick(start + SECOND * seconds, &view(Stage::Ready));
        let due = at(0);
        assert!(has(&due, "READY=1") && has(&due, "WATCHDOG=1"), "{due:?}");
        assert!(has(&due, "STATUS=serving: 0 requests"), "{due:?}");
        for second in 1..1000 {
            assert_eq!(at(second), ["WATCHDOG=1"]);
        }
    }

    #[test]
    fn a_long_step_feeds_the_watchdog_and_one_that_is_too_long_pulls_it() {
        let start = Instant::now();
        let limit = SECOND * 30;
        let mut reporter = Reporter::new(start, Some(SECOND * 4), limit);
        let mut at = |seconds: u32, step: u32| {
            let view = View {
                step: Some(SECOND * step),
                in_flight: 1,
                ..view(Stage::Ready)
            };
            reporter.tick(start + SECOND * seconds, &view)
        };
        for second in 0..=30 {
            assert!(has(&at(second, second), "WATCHDOG=1"), "{second}");
        }
        let due = at(31, 31);
        assert!(has(&due, "WATCHDOG=trigger"), "{due:?}");
        let status = "STATUS=stuck: a step has run for 31.0 s, and may for 30.0 s";
        assert!(has(&due, status), "{due:?}");
        let due = at(32, 32);
        assert!(due.iter().all(|line| !line.contains("WATCHDOG")), "{due:?}");
        assert!(!reporter.is_well(start + SECOND * 32));
    }

    #[test]
    fn an_http_side_that_does_not_come_round_is_stuck_too() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, Some(SECOND), SECOND);
        let view = View {
            silence: SECOND * 2,
            ..view(Stage::Ready)
        };
        assert!(has(&reporter.tick(start, &view), "WATCHDOG=trigger"));
    }

    #[test]
    fn without_a_watchdog_none_is_fed_or_pulled() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, None, SECOND);
        for step in 0..5 {
            let view = View {
                step: Some(SECOND * step),
                ..view(Stage::Ready)
            };
            let due = reporter.tick(start + SECOND * step, &view);
            assert!(due.iter().all(|line| !line.contains("WATCHDOG")), "{due:?}");
        }
    }

    #[test]
    fn a_drain_says_so_once_and_asks_for_time_while_requests_run() {
        let start = Instant::now();
        let mut reporter = Reporter::new(start, Some(SECOND), SECOND * 120);
        reporter.tick(start, &view(Stage::Ready));
        let mut at = |seconds: u32, in_flight| {
            let view = View {
                in_flight,
                ..view(Stage::Draining)
            };
            reporter.tick(start + SECOND * seconds, &view)
        };
        let due = at(1, 2);
        assert!(has(&due, "STOPPING=1"), "{due:?}");
        assert_eq!(extensions(&due), ["30000000"]);
        assert!(has(&due, "STATUS=draining: 2 requests"), "{due:?}");
        assert!(extensions(&at(2, 2)).is_empty());
        let due = at(6, 1);
        assert_eq!(extensions(&due), ["30000000"]);
        assert!(!has(&due, "STOPPING=1"));
        assert!(extensions(&at(20, 0)).is_empty());
    }
}
