//! How far a long job is: a bar with rate and remaining time on a terminal, a line now and then elsewhere.
//!
//! Both go to stderr, and neither appears before a job has taken a while: what is quick needs no bar.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::ui::Ui;
use crate::units;

/// Time after which a bar appears.
const BAR_DELAY: Duration = Duration::from_secs(1);
/// Time between lines where there is no terminal, and until the first of them.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// What a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    /// So-named things.
    Things(&'static str),
}

/// The progress of one job; the bar is wiped when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    ui: &'a Ui,
    job: Job,
    started: Instant,
    show: Show,
}

/// What is done of what.
#[derive(Debug, Clone)]
struct Job {
    what: &'static str,
    unit: Unit,
    total: u64,
    done: u64,
    /// A result so far.
    note: String,
}

#[derive(Debug)]
enum Show {
    Bar { bar: ProgressBar, drawn: bool },
    Lines { last: Instant },
}

impl<'a> Progress<'a> {
    /// `what` is a word such as "loading"; `total` counts in `unit`.
    pub(crate) fn new(ui: &'a Ui, what: &'static str, unit: Unit, total: u64) -> Self {
        let started = Instant::now();
        let show = if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
            bar.set_style(style(unit));
            bar.set_prefix(what);
            Show::Bar { bar, drawn: false }
        } else {
            Show::Lines { last: started }
        };
        let job = Job {
            what,
            unit,
            total,
            done: 0,
            note: String::new(),
        };
        Self {
            ui,
            job,
            started,
            show,
        }
    }

    /// So much more is done.
    pub(crate) fn add(&mut self, n: u64) {
        let done = self.job.done.saturating_add(n);
        self.set(done, String::new());
    }

    /// So much is done in all, with this result so far.
    pub(crate) fn set(&mut self, done: u64, note: String) {
        (self.job.done, self.job.note) = (done, note);
        match &mut self.show {
            Show::Bar { bar, drawn } => {
                bar.set_message(self.job.note.clone());
                bar.set_position(done);
                if !*drawn && self.started.elapsed() >= BAR_DELAY {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    *drawn = true;
                }
            }
            Show::Lines { last } => {
                if last.elapsed() >= LINE_INTERVAL && done < self.job.total {
                    *last = Instant::now();
                    self.ui.note(&self.job.line(self.started.elapsed()));
                }
            }
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Show::Bar { bar, .. } = &self.show {
            bar.finish_and_clear();
        }
    }
}

fn style(unit: Unit) -> ProgressStyle {
    // The templates are constants, and a test parses them.
    ProgressStyle::with_template(template(unit)).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn template(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => {
            "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left {msg}"
        }
        Unit::Things(_) => "{prefix} {wide_bar} {pos}/{len}, {per_sec}, {eta} left {msg}",
    }
}

impl Job {
    /// `converting: 1.0 GiB of 4.0 GiB (25 %), 100.0 MiB/s, 31 s left`.
    fn line(&self, elapsed: Duration) -> String {
        let rate = self.done as f64 / elapsed.as_secs_f64().max(1e-9);
        let left = self.total.saturating_sub(self.done) as f64 / rate.max(1e-9);
        let percent = 100 * u128::from(self.done) / u128::from(self.total.max(1));
        let (done, total, rate) = match self.unit {
            Unit::Bytes => (
                units::bytes(self.done),
                units::bytes(self.total),
                format!("{}/s", units::bytes(rate as u64)),
            ),
            Unit::Things(name) => (
                self.done.to_string(),
                format!("{} {name}", self.total),
                format!("{rate:.2} {name}/s"),
            ),
        };
        let left = units::duration(Duration::from_secs_f64(left.min(1e9)));
        let comma = if self.note.is_empty() { "" } else { ", " };
        format!(
            "{}: {done} of {total} ({percent} %), {rate}, {left} left{comma}{}",
            self.what, self.note
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bars_are_well_formed() {
        for unit in [Unit::Bytes, Unit::Things("windows")] {
            assert!(ProgressStyle::with_template(template(unit)).is_ok());
        }
    }

    #[test]
    fn a_line_tells_share_rate_and_remaining_time() {
        let job = Job {
            what: "converting",
            unit: Unit::Bytes,
            total: 4 << 30,
            done: 1 << 30,
            note: String::new(),
        };
        assert_eq!(
            job.line(Duration::from_secs(10)),
            "converting: 1.0 GiB of 4.0 GiB (25 %), 102.4 MiB/s, 30 s left"
        );
        let job = Job {
            what: "measuring",
            unit: Unit::Things("windows"),
            total: 200,
            done: 20,
            note: "perplexity 2.5".to_owned(),
        };
        assert_eq!(
            job.line(Duration::from_secs(10)),
            "measuring: 20 of 200 windows (10 %), 2.00 windows/s, 1 min 30 s left, perplexity 2.5"
        );
    }

    #[test]
    fn nothing_done_yet_is_no_division_by_zero() {
        let job = Job {
            what: "loading",
            unit: Unit::Bytes,
            total: 0,
            done: 0,
            note: String::new(),
        };
        assert!(job.line(Duration::ZERO).starts_with("loading: 0 bytes"));
    }
}
