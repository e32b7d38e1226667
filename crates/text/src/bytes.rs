//! The byte alphabet of GPT-2's byte-level BPE: each of the 256 bytes as one printable character.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the others, in order, become U+0100, U+0101, …
//! (`bytes_to_unicode` in OpenAI's GPT-2 `encoder.py`). So token strings in files are always valid, visible text.

/// Number of bytes that do not stand for themselves: their characters are U+0100 to U+0143.
const SHIFTED: usize = 68;

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn tables() -> ([char; 256], [u8; SHIFTED]) {
    let mut to_char = ['\0'; 256];
    let mut shifted = [0u8; SHIFTED];
    let mut n = 0;
    let mut byte = 0usize;
    while byte < 256 {
        if stands_for_itself(byte as u8) {
            to_char[byte] = byte as u8 as char;
        } else {
            to_char[byte] = match char::from_u32(0x100 + n as u32) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            };
            shifted[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    assert!(n == SHIFTED);
    (to_char, shifted)
}

const TABLES: ([char; 256], [u8; SHIFTED]) = tables();

/// The character that stands for a byte.
pub(crate) fn to_char(byte: u8) -> char {
    TABLES.0[usize::from(byte)]
}

/// The byte that a character stands for; `None` for a character outside the alphabet.
pub(crate) fn to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => TABLES.1.get(usize::try_from(code - 0x100).ok()?).copied(),
    }
}

/// A whole token string back to bytes; `None` if any character is outside the alphabet.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(to_byte).collect()
}

/// Text as a string in the byte alphabet, written to the end of `out`.
pub(crate) fn encode_into(text: &str, out: &mut String) {
    out.extend(text.bytes().map(to_char));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        for byte in 0..=255u8 {
            assert_eq!(to_byte(to_char(byte)), Some(byte));
        }
        assert_eq!(to_byte(' '), None);
        assert_eq!(to_byte('\u{144}'), None);
        assert_eq!(to_byte('\u{AD}'), None);
    }

    #[test]
    fn space_and_newline_have_their_usual_characters() {
        assert_eq!(
            (to_char(b' '), to_char(b'\n'), to_char(b'a')),
            ('Ġ', 'Ċ', 'a')
        );
    }
}
