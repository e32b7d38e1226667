//! What verify says: a table for people, an object for scripts.

use glim_engine::proof::{Check, Outcome};
use serde_json::{Value as Json, json};

use super::failed;
use crate::units;
use crate::version::{self, VERSION};

/// Checks that are done, and what was left out.
pub(super) struct Report {
    model: String,
    pub(super) digest: Option<String>,
    checks: Vec<Check>,
    /// What was not covered, and why.
    left_out: Vec<(String, String)>,
}

impl Report {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            digest: None,
            checks: Vec::new(),
            left_out: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, checks: Vec<Check>) {
        for check in checks
            .iter()
            .filter(|check| check.outcome == Outcome::Skipped)
        {
            let what = format!("{} {}: {}", check.level.number(), check.level, check.name);
            self.left_out.push((what, check.detail.clone()));
        }
        self.checks.extend(checks);
    }

    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        self.left_out.push((what.into(), why.into()));
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter()
    }

    pub(super) fn ok(&self) -> bool {
        !self.checks.iter().any(failed)
    }

    pub(super) fn to_json(&self) -> Json {
        let not_covered = self.left_out.iter();
        let not_covered = not_covered.map(|(what, why)| json!({ "what": what, "why": why }));
        json!({
            "ok": self.ok(),
            "digest": self.digest,
            "model": self.model,
            "version": VERSION,
            "kernels": version::kernels(),
            "checks": self.checks.iter().map(check_json).collect::<Vec<_>>(),
            "not_covered": not_covered.collect::<Vec<_>>(),
        })
    }

    pub(super) fn page(&self, colored: bool) -> String {
        let paint = Paint { colored };
        let mut out = self.table(paint);
        for check in self.checks.iter().filter(|check| failed(check)) {
            let Check {
                level,
                name,
                detail,
                first_bad,
                ..
            } = check;
            out += &format!(
                "\n{} {} {level}, {name}: {detail}.\n",
                paint.red("✗"),
                level.number()
            );
            if let Some(bad) = first_bad {
                out += &format!("  first wrong element: {bad}\n");
            }
        }
        if !self.left_out.is_empty() {
            out += "\nNot covered\n";
            for (what, why) in &self.left_out {
                out += &format!("  {what}: {why}\n");
            }
        }
        out += "\n";
        if let Some(digest) = &self.digest {
            out += &format!("digest  {digest}\n");
        }
        out += &format!("glim    {VERSION}, kernels {}\n", version::kernels());
        let made = self
            .checks
            .iter()
            .filter(|check| check.outcome != Outcome::Skipped);
        let (made, wrong) = (
            made.count(),
            self.checks.iter().filter(|c| failed(c)).count(),
        );
        out + &match wrong {
            0 => format!("{}\n", paint.green(&format!("All {made} checks hold."))),
            _ => format!(
                "{}\n",
                paint.red(&format!("{wrong} of {made} checks failed."))
            ),
        }
    }

    fn table(&self, paint: Paint) -> String {
        let width = |of: fn(&Check) -> &str, least: usize| {
            let lengths = self.checks.iter().map(|check| of(check).chars().count());
            lengths.max().unwrap_or(0).max(least)
        };
        let (levels, names) = (width(|c| c.level.name(), 5), width(|c| &c.name, 5));
        let mut out = format!(
            "{}\n\n    {:<levels$}  {:<names$}  {:>10}  {:>8}  {:>6}  {}\n",
            self.model, "level", "check", "bytes", "seconds", "GB/s", "covered"
        );
        for check in &self.checks {
            let mark = match check.outcome {
                Outcome::Passed => paint.green("✓"),
                Outcome::Failed => paint.red("✗"),
                Outcome::Skipped => paint.dim("–"),
            };
            let skipped = check.outcome == Outcome::Skipped;
            let seconds = match skipped {
                true => String::new(),
                false => format!("{:.2}", check.seconds),
            };
            let (bytes, rate) = match check.bytes {
                0 => (String::new(), String::new()),
                n => (
                    units::bytes(n),
                    format!("{:.2}", n as f64 / 1e9 / check.seconds.max(1e-9)),
                ),
            };
            let covered = if skipped { "not made" } else { &check.covered };
            let line = format!(
                "{} {mark} {:<levels$}  {:<names$}  {bytes:>10}  {seconds:>8}  {rate:>6}  {covered}",
                check.level.number(),
                check.level.name(),
                check.name,
            );
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

/// A check as scripts read it; `ok` is null for one that was not made.
fn check_json(check: &Check) -> Json {
    let first_bad = check.first_bad.as_ref().map(|bad| {
        json!({
            "tensor": bad.tensor, "row": bad.row, "col": bad.col, "expected": bad.expected, "found": bad.found,
        })
    });
    json!({
        "level": check.level.number(),
        "name": check.name,
        "ok": match check.outcome {
            Outcome::Passed => Some(true),
            Outcome::Failed => Some(false),
            Outcome::Skipped => None,
        },
        "covered": check.covered,
        "bytes": check.bytes,
        "seconds": check.seconds,
        "detail": check.detail,
        "first_bad": first_bad,
    })
}

/// Colours, or none.
#[derive(Debug, Clone, Copy)]
struct Paint {
    colored: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        match self.colored {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }
}

#[cfg(test)]
mod tests {
    use glim_engine::proof::{Level, Timer};

    use super::*;

    #[test]
    fn colours_are_for_those_who_see_them() {
        let mut report = Report::new("a model".into());
        report.add(vec![
            Timer::start(Level::File, "values").passed("1 tensor", 4, ""),
        ]);
        assert!(report.page(true).contains("\x1b[32m✓\x1b[0m"));
        assert!(!report.page(false).contains('\x1b'));
    }
}
