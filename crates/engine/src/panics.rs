//! Panics inside a backend: a bug, and the step's one error like any other that a rank ends with.
//!
//! A panic hook runs before anybody can catch, and what it knows is lost afterwards: so a hook that would end the process asks
//! [`is_watched`] first, and leaves the place by [`note_place`]. Both are this thread's own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether a panic of this thread becomes the error of a step, and so is no reason for a hook to end the process.
pub fn is_watched() -> bool {
    WATCHED.get()
}

/// Says where this thread panics: `file:line`.
pub fn note_place(place: String) {
    PLACE.set(Some(place));
}

/// What `job` gives, or what it panicked with, and where.
pub(crate) fn watched<T>(job: impl FnOnce() -> T) -> Result<T, String> {
    let before = WATCHED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(job));
    WATCHED.set(before);
    done.map_err(|panic| {
        let message = message_of(&*panic);
        match PLACE.take() {
            Some(place) => format!("{message} (at {place})"),
            None => message,
        }
    })
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_what_it_said_and_where_if_somebody_told() {
        assert!(!is_watched());
        assert_eq!(watched(is_watched), Ok(true));
        let with_place = || {
            note_place("here:7".into());
            panic!("on {}", "purpose")
        };
        assert_eq!(
            watched(with_place),
            Err::<(), _>("on purpose (at here:7)".into())
        );
        assert_eq!(watched(|| panic!("again")), Err::<(), _>("again".into()));
        assert!(!is_watched());
    }
}
