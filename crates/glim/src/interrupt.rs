//! Ctrl-C while an answer is being generated, or a file written: the first stops it, a second ends the process.
//!
//! A chat asks for this, and what leaves files half-written otherwise. Everywhere else Ctrl-C ends the command at once, as
//! the system has it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::{Exit, Failure};

/// What a shell shows for a command that SIGINT ended: 128 and the number of the signal.
const ENDED_BY_INTERRUPT: i32 = 128 + 2;

/// Whether the user wants the answer to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Never asked for.
    pub(crate) fn never() -> Self {
        Self::default()
    }

    /// Takes Ctrl-C over from the system, for the rest of the process.
    pub(crate) fn on_ctrl_c() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let flag = interrupt.clone();
        // The handler runs on a thread of its own, so it may do anything.
        ctrlc::set_handler(move || {
            if flag.0.swap(true, Ordering::SeqCst) {
                let mut out = io::stdout();
                if out.is_terminal() {
                    // The reasoning may have left the terminal dim.
                    let _ = out.write_all(b"\x1b[0m\n");
                }
                std::process::exit(ENDED_BY_INTERRUPT);
            }
        })
        .map_err(|error| {
            Failure::new(
                Exit::Temporary,
                format!("Ctrl-C cannot be taken over: {error}"),
            )
        })?;
        Ok(interrupt)
    }

    /// Ends the process as the system would have, now that all is tidied up.
    pub(crate) fn end(&self) -> ! {
        std::process::exit(ENDED_BY_INTERRUPT)
    }

    /// Forgets what was asked for before.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
