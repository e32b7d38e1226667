//! The operation parity table: every operation, with every weight type it can have, in every shape of step, on any backend,
//! held against the scalar reference executor.
//!
//! A backend joins with one line in its tests:
//!
//! ```
//! use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
//! use glim_testkit::parity::{Arithmetic, Subject, check};
//!
//! # if false { // It takes seconds.
//! check(&Subject::new("reference", Arithmetic::Exact, &|poison| {
//!     Box::new(ReferenceBackend::new(ReferenceOptions { poison, ..Default::default() }))
//! }));
//! # }
//! ```
//!
//! Each case is one prepared plan, and is run
//! - with all its rows, against the reference: bit for bit in exact arithmetic, within the operation's bound in fast;
//! - without rows, then a few rows alone, then all rows again: a row's bits depend neither on its company nor on what was before;
//! - with tokens that an earlier step drew, where the operation carries them;
//! - poisoned: outputs filled with NaN before each operation change no bit, so all of them are written;
//! - with a NaN and with an infinite activation: what is not finite in the reference must not be finite here, a number must
//!   stay a number, and a poisoned backend must name the operation that the reference names.
//!
//! Layouts: one row, an odd number, decode of several sequences at different depths, ragged prefill with scattered blocks,
//! and a step that fills its plan and its cache.

pub mod blocks;
mod bounds;
mod case;
mod compare;
mod layout;
mod session;
mod table;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};

use self::case::{Case, INFINITE_TOKEN, NAN_TOKEN};
use self::compare::{Buffer, Distance, compare};
use self::layout::Row;
use self::session::Session;

/// What a backend promises of its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// The reference's bits.
    Exact,
    /// Each operation within its bound.
    Fast,
}

/// Makes a backend; the argument says whether it is to poison its buffers.
pub type Make<'a> = &'a dyn Fn(bool) -> Box<dyn Backend>;

/// A backend under test.
pub struct Subject<'a> {
    name: &'a str,
    arithmetic: Arithmetic,
    make: Make<'a>,
}

impl<'a> Subject<'a> {
    /// A backend by name.
    pub fn new(name: &'a str, arithmetic: Arithmetic, make: Make<'a>) -> Self {
        Self {
            name,
            arithmetic,
            make,
        }
    }
}

/// A case, and what the reference gives for it: computed when a first backend of a test binary is held against it.
struct Expected {
    case: Case,
    runs: OnceLock<Runs>,
}

impl Expected {
    fn runs(&self) -> &Runs {
        let name = &self.case.name;
        self.runs
            .get_or_init(|| runs(&reference, &self.case).unwrap_or_else(|e| panic!("{name}: {e}")))
    }
}

/// The results of a case that are compared with the reference's.
struct Runs {
    all: Vec<Buffer>,
    carried: Option<Vec<Buffer>>,
    states: Vec<Buffer>,
    specials: Vec<Vec<Buffer>>,
    /// What the poisoned backend says of a NaN.
    poisoned: Option<String>,
}

/// Runs the whole table. Returns a digest of every bit of the results, for backends that must agree with each other: one that
/// uses more threads, say.
///
/// # Panics
/// If a case fails, with a list of all that do.
pub fn check(subject: &Subject<'_>) -> u64 {
    check_some(subject, &|_| true)
}

/// Runs the cases whose names (operation, weight type, sizes, layout) are wanted.
///
/// # Panics
/// As [`check`].
pub fn check_some(subject: &Subject<'_>, wanted: &dyn Fn(&str) -> bool) -> u64 {
    let (mut failures, mut worst) = (Vec::new(), BTreeMap::<&str, Distance>::new());
    let mut digest = DefaultHasher::new();
    let expected: Vec<&Expected> = expected()
        .iter()
        .filter(|expected| wanted(&expected.case.name))
        .collect();
    for wanted in &expected {
        let case = &wanted.case;
        match check_case(subject, case, wanted.runs()) {
            Ok((distance, found)) => {
                found
                    .iter()
                    .for_each(|buffer| buffer.rows.hash(&mut digest));
                let op = case.name.split([' ', ',']).next().unwrap_or_default();
                let w = worst.entry(op).or_default();
                w.nmse = w.nmse.max(distance.nmse);
                w.max = w.max.max(distance.max);
            }
            Err(reason) => failures.push(format!("{}: {reason}", case.name)),
        }
    }
    println!(
        "{}: {} cases; furthest from the reference:",
        subject.name,
        expected.len()
    );
    for (op, distance) in worst.iter().filter(|(_, d)| d.nmse > 0.0) {
        let Distance { nmse, max } = distance;
        println!("  {op}: normalised mean squared error {nmse:.1e}, element {max:.1e}");
    }
    assert!(
        failures.is_empty(),
        "{} differs from the reference in {} of {} cases:\n{}",
        subject.name,
        failures.len(),
        expected.len(),
        failures.join("\n")
    );
    digest.finish()
}

fn reference(poison: bool) -> Box<dyn Backend> {
    Box::new(ReferenceBackend::new(ReferenceOptions {
        poison,
        ..ReferenceOptions::default()
    }))
}

fn expected() -> &'static [Expected] {
    static EXPECTED: OnceLock<Vec<Expected>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let expect = |case| Expected {
            case,
            runs: OnceLock::new(),
        };
        table::cases().into_iter().map(expect).collect()
    })
}

/// The runs that are compared.
fn runs(make: Make<'_>, case: &Case) -> Result<Runs, String> {
    let batch = case.layout.batch();
    let mut session = Session::new(make(false), case)?;
    session.history()?;
    let all = session.run(&batch)?;
    let states = session.states()?;
    let carried = match session.carries() {
        false => None,
        true => {
            let rows: Vec<Row> = batch.iter().map(|r| Row { token: -1, ..*r }).collect();
            Some(session.run(&rows)?)
        }
    };
    let (mut specials, mut poisoned) = (Vec::new(), None);
    if case.specials {
        for which in [NAN_TOKEN, INFINITE_TOKEN] {
            let mut session = Session::new(make(false), case)?;
            session.history()?;
            specials.push(session.run(&with_special(case, which))?);
        }
        let mut session = Session::new(make(true), case)?;
        session.history()?;
        poisoned = match session.run(&with_special(case, NAN_TOKEN)) {
            Ok(_) => return Err("a poisoned run let a NaN pass".into()),
            Err(error) => Some(error),
        };
    }
    Ok(Runs {
        all,
        carried,
        states,
        specials,
        poisoned,
    })
}

/// The batch, with a special token in the place of a middle row.
fn with_special(case: &Case, which: usize) -> Vec<Row> {
    let mut rows = case.layout.batch();
    let middle = rows.len() / 2;
    rows[middle].token = case.special(which);
    rows
}

fn check_case(
    subject: &Subject<'_>,
    case: &Case,
    expected: &Runs,
) -> Result<(Distance, Vec<Buffer>), String> {
    let bound = match subject.arithmetic {
        Arithmetic::Exact => bounds::NONE,
        Arithmetic::Fast => case.bound,
    };
    let found = runs(subject.make, case)?;
    let distance = compare_all("all rows", &found.all, &expected.all, bound)?;
    compare_all("state", &found.states, &expected.states, bound)?;
    if let (Some(found), Some(expected)) = (&found.carried, &expected.carried) {
        compare_all("carried tokens", found, expected, bound)?;
    }
    for (what, (found, expected)) in ["NaN", "infinity"]
        .iter()
        .zip(found.specials.iter().zip(&expected.specials))
    {
        compare_all(what, found, expected, bound)?;
    }
    if found.poisoned != expected.poisoned {
        return Err(format!(
            "poisoned, with a NaN: {:?}, expected {:?}",
            found.poisoned, expected.poisoned
        ));
    }
    check_replay(subject, case, &found.all)?;
    Ok((distance, found.all))
}

fn compare_all(
    run: &str,
    found: &[Buffer],
    expected: &[Buffer],
    bound: f64,
) -> Result<Distance, String> {
    let mut worst = Distance::default();
    for (found, expected) in found.iter().zip(expected) {
        let distance = compare(found, expected, bound).map_err(|e| format!("{run}: {e}"))?;
        worst.nmse = worst.nmse.max(distance.nmse);
        worst.max = worst.max.max(distance.max);
    }
    Ok(worst)
}

/// One prepared step, run with all rows, none, some alone, and all again; then all in poisoned memory.
fn check_replay(subject: &Subject<'_>, case: &Case, all: &[Buffer]) -> Result<(), String> {
    let batch = case.layout.batch();
    for poison in [false, true] {
        let what = if poison { "poisoned, " } else { "" };
        let mut session = Session::new((subject.make)(poison), case)?;
        let empty = |session: &mut Session<'_>| {
            let found = session.run(&[]);
            found.map_err(|e| format!("{what}a step without rows: {e}"))
        };
        empty(&mut session)?;
        session.history()?;
        let bits = |run: &str, found: &[Buffer], expected: &[Buffer]| {
            compare_all(&format!("{what}{run}"), found, expected, bounds::NONE)
        };
        bits("all rows at first", &session.run(&batch)?, all)?;
        empty(&mut session)?;
        let mut alone = vec![0, batch.len() / 2, batch.len() - 1];
        alone.dedup();
        for i in alone {
            let found = session.run(&batch[i..=i])?;
            let expected = session.row_of(all, i, batch.len());
            // A row that is no output row of the batch has nothing to compare with.
            let (found, expected): (Vec<Buffer>, Vec<Buffer>) = found
                .into_iter()
                .zip(expected)
                .filter_map(|(found, expected)| Some((found, expected?)))
                .unzip();
            bits(&format!("row {i} alone"), &found, &expected)?;
        }
        bits("all rows again", &session.run(&batch)?, all)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
