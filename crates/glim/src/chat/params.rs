//! `/params`: what can be changed about the drawing of tokens while a chat goes on.

use std::str::FromStr;

use crate::session::Settings;

/// The settings in words, as they can be typed again.
pub(super) fn show(settings: &Settings) -> String {
    let sampling = &settings.sampling;
    let max_tokens = match settings.max_tokens {
        Some(n) => n.to_string(),
        None => "none".to_owned(),
    };
    format!(
        "temperature={} top_k={} top_p={} seed={} max_tokens={max_tokens}",
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed
    )
}

/// Takes `NAME=VALUE` words over, all of them or none.
pub(super) fn change(settings: &Settings, words: &str) -> Result<Settings, String> {
    let mut changed = settings.clone();
    for word in words.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("`{word}`: expected NAME=VALUE, as in temperature=0.7"))?;
        set(&mut changed, name, value)?;
    }
    Ok(changed)
}

fn set(settings: &mut Settings, name: &str, value: &str) -> Result<(), String> {
    let sampling = &mut settings.sampling;
    match name {
        "temperature" => {
            let is_right = |t: &f32| t.is_finite() && *t >= 0.0;
            sampling.temperature = number(name, value, "a number, 0 or more", is_right)?;
        }
        "top_k" => sampling.top_k = number(name, value, "a whole number", |_| true)?,
        "top_p" => {
            let is_right = |p: &f32| *p > 0.0 && *p <= 1.0;
            sampling.top_p = number(name, value, "a number above 0, at most 1", is_right)?;
        }
        "seed" => sampling.seed = number(name, value, "a whole number", |_| true)?,
        "max_tokens" if value == "none" => settings.max_tokens = None,
        "max_tokens" => {
            let n = number(name, value, "none, or a whole number from 1", |n| *n > 0)?;
            settings.max_tokens = Some(n);
        }
        _ => {
            return Err(format!(
                "`{name}` is none of temperature, top_k, top_p, seed, max_tokens"
            ));
        }
    }
    Ok(())
}

fn number<T: FromStr>(
    name: &str,
    value: &str,
    expected: &str,
    is_right: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let number = value.parse().ok().filter(is_right);
    number.ok_or_else(|| format!("{name} is `{value}`; expected {expected}"))
}
