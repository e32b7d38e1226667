//! A strict parser of the Prometheus text format 0.0.4, written from its description
//! (`prometheus.io/docs/instrumenting/exposition_formats`), and not from the encoder.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The labels of a series.
type Labels = Vec<(String, String)>;

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(super) struct Exposition(Vec<Family>);

impl Exposition {
    pub(super) fn families(&self) -> &[Family] {
        &self.0
    }

    pub(super) fn family(&self, name: &str) -> &Family {
        self.0
            .iter()
            .find(|family| family.name == name)
            .unwrap_or_else(|| panic!("no family {name}"))
    }

    /// The value of the one sample of this name that has these labels among its own.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self
            .0
            .iter()
            .flat_map(|family| &family.samples)
            .filter(|sample| {
                sample.name == name
                    && labels
                        .iter()
                        .all(|(label, value)| sample.labels.get(*label).is_some_and(|v| v == value))
            });
        let first = found.next()?;
        assert!(found.next().is_none(), "{name}{labels:?} is not one sample");
        Some(first.value)
    }
}

/// The families of a whole exposition, or the first fault.
pub(super) fn parse(text: &str) -> Result<Exposition, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest
                .split_once(' ')
                .ok_or_else(|| format!("{line}: no type"))?;
            let kind = match kind {
                "counter" => Kind::Counter,
                "gauge" => Kind::Gauge,
                "histogram" => Kind::Histogram,
                _ => return Err(format!("{line}: no such type")),
            };
            is_name(name, true)?;
            if families.iter().any(|family| family.name == name) {
                return Err(format!("{line}: a second time"));
            }
            families.push(Family {
                name: name.to_owned(),
                kind,
                samples: Vec::new(),
            });
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest
                .split_once(' ')
                .ok_or_else(|| format!("{line}: no help"))?;
            is_name(name, true)?;
            if help.trim().is_empty() {
                return Err(format!("{line}: no help"));
            }
        } else {
            let sample = sample(line)?;
            let family = families
                .last_mut()
                .filter(|family| belongs(&sample.name, family))
                .ok_or_else(|| format!("{line}: not of the family before it"))?;
            let again = family
                .samples
                .iter()
                .any(|other| other.name == sample.name && other.labels == sample.labels);
            if again {
                return Err(format!("{line}: a second time"));
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(check_values)?;
    Ok(Exposition(families))
}

fn belongs(sample: &str, family: &Family) -> bool {
    match family.kind {
        Kind::Counter => sample == family.name && sample.ends_with("_total"),
        Kind::Gauge => sample == family.name,
        Kind::Histogram => sample
            .strip_prefix(family.name.as_str())
            .is_some_and(|suffix| matches!(suffix, "_bucket" | "_sum" | "_count")),
    }
}

fn is_name(name: &str, colons: bool) -> Result<(), String> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    let good = name.chars().next().is_some_and(first)
        && name.chars().all(|c| first(c) || c.is_ascii_digit());
    good.then_some(())
        .ok_or_else(|| format!("{name:?} is no name"))
}

/// `name{label="value",…} number`.
fn sample(line: &str) -> Result<Sample, String> {
    let fault = |what: &str| format!("{line}: {what}");
    let end = line.find(['{', ' ']).ok_or_else(|| fault("no value"))?;
    let (name, mut rest) = line.split_at(end);
    is_name(name, true)?;
    let mut labels = BTreeMap::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inner.split_once("=\"").ok_or_else(|| fault("no label"))?;
            is_name(label, false)?;
            let (value, after) = unescape(after).ok_or_else(|| fault("the label is open"))?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(fault("the same label twice"));
            }
            match after.strip_prefix(',') {
                Some(next) => inner = next,
                None => {
                    rest = after
                        .strip_prefix('}')
                        .ok_or_else(|| fault("the labels are open"))?;
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| fault("no value"))?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().map_err(|_| fault("no number"))?,
    };
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// The text up to the closing quote, and what follows.
fn unescape(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c @ ('"' | '\\') => value.push(c),
                _ => return None,
            },
            c => value.push(c),
        }
    }
    None
}

fn check_values(family: &Family) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{}: {what}", family.name));
    match family.kind {
        Kind::Gauge => Ok(()),
        Kind::Counter if family.samples.iter().all(|sample| sample.value >= 0.0) => Ok(()),
        Kind::Counter => fault("a negative counter"),
        Kind::Histogram => check_buckets(family),
    }
}

/// Buckets rise in bound and count, the last is infinite and equals the count; each series has its sum.
fn check_buckets(family: &Family) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{}: {what}", family.name));
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let of = series.entry(labels.into_iter().collect()).or_default();
        if let Some(bound) = bound {
            let bound = match bound.as_str() {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().map_err(|_| format!("{}: le", family.name))?,
            };
            of.push((bound, sample.value));
        }
    }
    for (labels, buckets) in series {
        let rises = buckets
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        if !rises {
            return fault("buckets do not rise");
        }
        let Some((f64::INFINITY, last)) = buckets.last().copied() else {
            return fault("no infinite bucket");
        };
        let of = |suffix: &str| {
            family.samples.iter().find(|sample| {
                sample.name == format!("{}{suffix}", family.name)
                    && sample.labels.iter().eq(labels.iter().map(|(n, v)| (n, v)))
            })
        };
        let (Some(count), Some(_)) = (of("_count"), of("_sum")) else {
            return fault("no sum or no count");
        };
        if count.value != last {
            return fault("the count is not the last bucket");
        }
    }
    Ok(())
}
