//! Facts and findings as people read them: the GPUs first, then what is to be done, then one line that sums up.

use std::fmt::Write;

use crate::checks::{Finding, Level};
use crate::facts::{Facts, Gpu, Path};
use crate::reading::Reading;

/// Columns of text.
const WIDTH: usize = 110;

/// `20.5 MiB`; below 1 KiB in bytes.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    // What would round to a whole step belongs to the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} bytes"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// `40 s`, `12 min`, `5 h`, `3 d`.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// All of it. With `verbose` also what is fine.
pub fn page(facts: &Facts, findings: &[Finding], verbose: bool) -> String {
    let mut text = String::new();
    gpus(&mut text, facts);
    topology(&mut text, facts);
    for level in [Level::Blocker, Level::Note, Level::Ok] {
        let shown = findings.iter().filter(|finding| finding.level == level);
        for finding in shown.filter(|_| verbose || level != Level::Ok) {
            one(&mut text, finding);
        }
    }
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    text.push_str(&sum(findings));
    text.push('\n');
    text
}

/// `2 blockers, 5 notes (1 unknown), 30 ok`.
pub fn sum(findings: &[Finding]) -> String {
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let unknown = findings.iter().filter(|finding| finding.unknown).count();
    let unknown = match unknown {
        0 => String::new(),
        unknown => format!(" ({unknown} of them unknown)"),
    };
    format!(
        "{}, {}{unknown}, {} ok",
        plural(count(Level::Blocker), "blocker"),
        plural(count(Level::Note), "note"),
        count(Level::Ok)
    )
}

fn known<T>(reading: Option<&Reading<T>>, show: impl FnOnce(&T) -> String) -> String {
    reading
        .and_then(Reading::known)
        .map_or_else(|| "?".to_owned(), show)
}

fn gpus(text: &mut String, facts: &Facts) {
    let version = known(Some(&facts.driver.version), String::clone);
    let cuda = known(Some(&facts.driver.cuda), |cuda| {
        format!("{}.{}", cuda / 1000, cuda % 1000 / 10)
    });
    if facts.gpus.is_empty() {
        text.push_str("no NVIDIA GPU\n\n");
        return;
    }
    let _ = writeln!(text, "driver {version}, CUDA {cuda}");
    let head = [
        "GPU", "place", "name", "memory", "in use", "cc", "link", "NVLink", "node", "watts",
        "held by",
    ]
    .map(str::to_owned);
    let rows = std::iter::once(head.to_vec()).chain(facts.gpus.iter().map(|gpu| row(gpu, facts)));
    let rows: Vec<Vec<String>> = rows.collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{:width$}", plain(cell)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text.push('\n');
}

fn row(gpu: &Gpu, facts: &Facts) -> Vec<String> {
    let nvml = gpu.nvml.known();
    let link = match (gpu.link.speed.get(), gpu.link.width.get()) {
        (Some(speed), Some(width)) => format!("{speed} GT/s x{width}"),
        _ => match nvml
            .and_then(|nvml| Some((nvml.link_generation.get()?.0, nvml.link_width.get()?.0)))
        {
            Some((generation, width)) => format!("gen {generation} x{width}"),
            None => "?".to_owned(),
        },
    };
    let nvlink = gpu.nvlink();
    let holders = facts.holders.of(&[gpu.index]);
    let mut name = known(nvml.map(|nvml| &nvml.name), String::clone);
    if nvml
        .and_then(|nvml| nvml.mig.get())
        .is_some_and(|mig| mig.current)
    {
        name.push_str(" (MIG)");
    }
    vec![
        gpu.index.to_string(),
        known(Some(&gpu.bus_id), String::clone),
        name,
        known(nvml.map(|nvml| &nvml.memory), |memory| bytes(memory.total)),
        known(nvml.map(|nvml| &nvml.memory), |memory| bytes(memory.used)),
        known(nvml.map(|nvml| &nvml.capability), |(major, minor)| {
            format!("{major}.{minor}")
        }),
        link,
        match nvlink.links {
            0 => "–".to_owned(),
            links => format!("{}/{links}", nvlink.active),
        },
        known(Some(&gpu.numa_node), i32::to_string),
        known(nvml.map(|nvml| &nvml.power_limit), |limit| {
            (limit / 1000).to_string()
        }),
        known(Some(&holders), |holders| {
            let pids: Vec<String> = holders
                .iter()
                .map(|holder| holder.pid.to_string())
                .collect();
            match pids.is_empty() {
                true => "–".to_owned(),
                false => pids.join(" "),
            }
        }),
    ]
}

/// The matrix of `nvidia-smi topo -m`, and islands.
fn topology(text: &mut String, facts: &Facts) {
    if !facts.has_several() {
        return;
    }
    let gpus = facts.gpus.len();
    let cell = |a: usize, b: usize| {
        let pair = facts
            .topology
            .pairs
            .iter()
            .find(|pair| pair.gpus == (a.min(b), a.max(b)));
        match pair {
            None => "X".to_owned(),
            Some(pair) if pair.nvlinks > 0 => format!("NV{}", pair.nvlinks),
            Some(pair) => known(Some(&pair.path), |path| {
                let name = match path {
                    Path::Pix => "PIX",
                    Path::Pxb => "PXB",
                    Path::Phb => "PHB",
                    Path::Node => "NODE",
                    Path::Sys => "SYS",
                };
                name.to_owned()
            }),
        }
    };
    for a in 0..gpus {
        let cells: Vec<String> = (0..gpus).map(|b| format!("{:5}", cell(a, b))).collect();
        let _ = writeln!(text, "{:<4}{}", a, cells.concat().trim_end());
    }
    let islands: Vec<String> = facts
        .topology
        .islands
        .iter()
        .map(|island| format!("{island:?}"))
        .collect();
    let _ = writeln!(text, "islands: {}\n", islands.join(" "));
}

fn one(text: &mut String, finding: &Finding) {
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Blocker => "BLOCKER",
    };
    wrap(
        text,
        &format!("{level:8}{}: ", finding.id),
        8,
        &finding.title,
    );
    if !finding.detail.is_empty() {
        wrap(text, "        ", 8, &finding.detail);
    }
    if !finding.fix.is_empty() {
        wrap(text, "        fix: ", 13, &finding.fix);
    }
    if finding.level != Level::Ok {
        text.push('\n');
    }
}

/// Text without control characters: commands and names come from other users, and a terminal obeys what it is sent.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Words in lines of at most [`WIDTH`], the first after `head`, the others after `indent` blanks.
fn wrap(text: &mut String, head: &str, indent: usize, words: &str) {
    let words = plain(words);
    let mut line = head.to_owned();
    let mut is_fresh = true;
    for word in words.split(' ') {
        if !is_fresh && line.chars().count() + word.chars().count() >= WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(indent);
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line.push_str(word);
        is_fresh = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 1023, 1024, 150_754_820_096].map(bytes),
            ["0 bytes", "1023 bytes", "1.0 KiB", "140.4 GiB"]
        );
        assert_eq!(
            [5, 119, 120, 7200, 300_000].map(age),
            ["5 s", "119 s", "2 min", "2 h", "3 d"]
        );
    }

    #[test]
    fn a_command_of_somebody_else_does_not_reach_the_terminal_raw() {
        let mut text = String::new();
        wrap(
            &mut text,
            "note  ",
            6,
            "pid 7: evil\u{1b}[2J\rok\n\u{9b}31m",
        );
        assert_eq!(
            text,
            "note  pid 7: evil\u{fffd}[2J\u{fffd}ok\u{fffd}\u{fffd}31m\n"
        );
    }

    #[test]
    fn long_text_is_broken_between_words() {
        let mut text = String::new();
        wrap(&mut text, "note  ", 6, &"word ".repeat(40));
        assert!(text.lines().count() > 1);
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            assert!(
                line.starts_with("note  word") || line.starts_with("      word"),
                "{line}"
            );
        }
        let mut text = String::new();
        wrap(&mut text, "", 2, &"x".repeat(300));
        assert_eq!(text.lines().count(), 1);
    }
}
