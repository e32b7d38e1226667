//! Stop strings in a text that comes in pieces.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_text::{StopStrings, Stopped};
use proptest::prelude::*;

fn stops(strings: &[&str]) -> StopStrings {
    StopStrings::new(strings.iter().map(|text| (*text).to_owned()).collect())
}

/// All text that comes out, and which string stopped it.
fn run(mut stops: StopStrings, pieces: &[&str]) -> (String, Option<usize>) {
    let mut text = String::new();
    let mut matched = None;
    for piece in pieces {
        let stopped = stops.push(piece);
        text += &stopped.text;
        matched = matched.or(stopped.matched);
    }
    text += &stops.finish();
    (text, matched)
}

/// The definition: after each character, does the text end with any of the strings? The longest of them.
fn naive(strings: &[String], text: &str) -> (String, Option<usize>) {
    for (at, character) in text.char_indices() {
        let so_far = &text[..at + character.len_utf8()];
        let mut best: Option<usize> = None;
        for (which, string) in strings.iter().enumerate() {
            if !string.is_empty()
                && so_far.ends_with(string.as_str())
                && best.is_none_or(|best| string.len() > strings[best].len())
            {
                best = Some(which);
            }
        }
        if let Some(which) = best {
            let end = so_far.len() - strings[which].len();
            return (text[..end].to_owned(), Some(which));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn text_ends_just_before_the_first_stop_string() {
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a str, Option<usize>);
    let cases: [Case<'_>; 12] = [
        (&["STOP"], &["abc STOP def"], "abc ", Some(0)),
        (
            &["STOP"],
            &["abc S", "TO", "P def", "more"],
            "abc ",
            Some(0),
        ),
        (&["STOP"], &["STO", "RY"], "STORY", None),
        (&["STOP"], &["abc STO"], "abc STO", None),
        // One begins the other: the shorter is complete first.
        (&["abc", "ab"], &["xa", "bc"], "x", Some(1)),
        // One ends the other: both are complete at once, the longer counts.
        (&["bc", "abc"], &["xa", "bc"], "x", Some(1)),
        // One lies within the other, and is complete first.
        (&["abcd", "bc"], &["abcd"], "a", Some(1)),
        // The text falls back to a shorter beginning.
        (&["aab"], &["aaaa", "ab"], "aaa", Some(0)),
        (&["abab!"], &["abab", "ab!"], "ab", Some(0)),
        // Characters of several bytes; none at all; an empty string.
        (&["é\n"], &["caf", "é", "\n"], "caf", Some(0)),
        (&[], &["a", "b"], "ab", None),
        (&["", "b"], &["a", "b"], "a", Some(1)),
    ];
    for (strings, pieces, text, matched) in cases {
        assert_eq!(
            run(stops(strings), pieces),
            (text.to_owned(), matched),
            "{strings:?} in {pieces:?}"
        );
    }
}

#[test]
fn only_the_beginning_of_a_stop_string_is_held() {
    let mut stops = stops(&["</end>", "\n\n\nUser:"]);
    let text = |text: &str| Stopped {
        text: text.to_owned(),
        matched: None,
    };
    assert_eq!(stops.push("Hello"), text("Hello"));
    assert_eq!(stops.push(" <"), text(" "));
    assert_eq!(stops.push("b>"), text("<b>"));
    assert_eq!(stops.push("\n\n"), text(""));
    assert_eq!(stops.push("\n\n"), text("\n"));
    assert_eq!(stops.push("</e"), text("\n\n\n"));
    assert_eq!(stops.finish(), "</e");
}

#[test]
fn nothing_comes_after_a_match() {
    let mut stops = stops(&["."]);
    assert_eq!(stops.push("a.b").text, "a");
    assert_eq!(stops.push("c."), Stopped::default());
    assert_eq!(stops.finish(), "");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Every cut of the text gives what a search of the whole text gives. Two letters make overlaps frequent.
    #[test]
    fn any_cut_equals_a_search_of_the_whole(
        strings in prop::collection::vec("[ab]{1,5}|é?a?", 0..4),
        pieces in prop::collection::vec("[abé]{0,5}", 0..10),
    ) {
        let stops = StopStrings::new(strings.clone());
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(run(stops, &pieces), naive(&strings, &pieces.concat()));
    }

    /// What is held back is always a proper beginning of a stop string.
    #[test]
    fn what_is_held_begins_a_stop_string(
        strings in prop::collection::vec("[ab]{1,5}", 0..4),
        pieces in prop::collection::vec("[ab]{0,5}", 0..10),
    ) {
        let mut stops = StopStrings::new(strings.clone());
        let mut given = String::new();
        for (count, piece) in pieces.iter().enumerate() {
            let stopped = stops.push(piece);
            if stopped.matched.is_some() {
                break;
            }
            given += &stopped.text;
            let so_far = pieces[..=count].concat();
            let held = so_far.strip_prefix(&given).unwrap();
            prop_assert!(held.is_empty() || strings.iter().any(|string| string.len() > held.len() && string.starts_with(held)));
        }
    }
}
