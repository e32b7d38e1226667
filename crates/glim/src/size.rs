//! Sizes as llama.cpp's tools take them: `45G`, `500M`, in powers of 1000.

/// Units and their bytes.
const UNITS: [(char, u64); 4] = [
    ('K', 1_000),
    ('M', 1_000_000),
    ('G', 1_000_000_000),
    ('T', 1_000_000_000_000),
];

/// Bytes of a positive whole number with a unit.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let expected = || "expected a whole number and K, M, G or T, such as 45G".to_owned();
    let unit = text.chars().next_back().map(|c| c.to_ascii_uppercase());
    let &(_, factor) = UNITS
        .iter()
        .find(|(name, _)| Some(*name) == unit)
        .ok_or_else(expected)?;
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
    number
        .checked_mul(factor)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        for (text, bytes) in [
            ("45G", 45_000_000_000),
            ("500M", 500_000_000),
            ("7k", 7_000),
            ("1T", 1_000_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "0G",
            "45",
            "-1G",
            "1.5G",
            "45GB",
            "99999999999T",
            "4 G",
            "4é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
