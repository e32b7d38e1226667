//! Where the bytes of a weight's blocks lie on the GPU: as in the file, or in planes.
//!
//! Blocks of 34, 22 or 210 bytes cannot be read 16 bytes at a time. A weight of such a type lies in *planes*: each field of all blocks
//! together, field after field, as `kernels/include/blocks.cuh` reads them. It takes the same bytes in either form, and no byte is
//! changed, only moved, so what lies on the GPU can be turned back into the file's bytes and compared with them.

use glim_plan::GgmlType;

/// A field: the byte of the block where it begins, and its bytes.
pub(crate) type Field = (usize, usize);

/// How a type's blocks lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As in the file.
    Stored,
    /// The fields of all blocks, one plane after the other, in this order.
    Planes(&'static [Field]),
}

impl Layout {
    /// The layout of all weights of a type.
    ///
    /// Larger fields come first, so that planes begin at multiples of 16 bytes as long as their fields are such multiples.
    pub(crate) fn of(ty: GgmlType) -> Self {
        use GgmlType as T;
        let planes: &[Field] = match ty {
            T::Q8_0 => &[(2, 32), (0, 2)],
            T::Q8_1 => &[(4, 32), (0, 4)],
            T::Q4_0 | T::IQ4_NL => &[(2, 16), (0, 2)],
            T::Q4_1 => &[(4, 16), (0, 4)],
            T::Q5_0 => &[(6, 16), (2, 4), (0, 2)],
            T::Q5_1 => &[(8, 16), (4, 4), (0, 4)],
            T::Q2_K => &[(16, 64), (0, 16), (80, 4)],
            T::Q3_K => &[(32, 64), (0, 32), (96, 12), (108, 2)],
            T::Q6_K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
            T::Q8_K => &[(4, 256), (260, 32), (0, 4)],
            T::IQ4_XS => &[(8, 128), (0, 8)],
            T::MXFP4 => &[(1, 16), (0, 1)],
            T::NVFP4 => &[(4, 32), (0, 4)],
            T::TQ1_0 => &[(0, 48), (48, 4), (52, 2)],
            T::TQ2_0 => &[(0, 64), (64, 2)],
            T::IQ2_XXS => &[(2, 64), (0, 2)],
            T::IQ2_XS => &[(2, 64), (66, 8), (0, 2)],
            T::IQ2_S => &[(2, 64), (66, 16), (0, 2)],
            T::IQ3_XXS => &[(2, 96), (0, 2)],
            T::IQ3_S => &[(2, 64), (74, 32), (66, 8), (106, 4), (0, 2)],
            T::IQ1_S => &[(2, 48), (0, 2)],
            _ => return Self::Stored,
        };
        Self::Planes(planes)
    }
}

/// A part of a weight in memory, and the bytes of a chunk that belong there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in the weight on the GPU.
    pub(crate) at: usize,
    /// Offset in the rearranged chunk.
    pub(crate) from: usize,
    /// Bytes.
    pub(crate) len: usize,
}

/// Where the chunk that holds blocks `first .. first + count` of a weight of `blocks` blocks lies, rearranged: field after field,
/// each the fields of these blocks.
pub(crate) fn pieces(ty: GgmlType, blocks: usize, first: usize, count: usize) -> Vec<Piece> {
    let bytes = ty.block_bytes();
    match Layout::of(ty) {
        Layout::Stored => vec![Piece {
            at: first * bytes,
            from: 0,
            len: count * bytes,
        }],
        Layout::Planes(fields) => {
            let mut before = 0;
            let piece = |(_, len): &Field| {
                let piece = Piece {
                    at: blocks * before + first * len,
                    from: count * before,
                    len: count * len,
                };
                before += len;
                piece
            };
            fields.iter().map(piece).collect()
        }
    }
}

/// Rearranges whole blocks of the file into a chunk of the same length.
pub(crate) fn rearrange(ty: GgmlType, stored: &[u8], chunk: &mut [u8]) {
    match Layout::of(ty) {
        Layout::Stored => chunk.copy_from_slice(stored),
        Layout::Planes(fields) => each_field(ty, fields, stored.len(), |block, place, len| {
            copy_field(&stored[block..][..len], &mut chunk[place..][..len]);
        }),
    }
}

/// Turns a chunk back into whole blocks of the file.
pub(crate) fn restore(ty: GgmlType, chunk: &[u8], stored: &mut [u8]) {
    match Layout::of(ty) {
        Layout::Stored => stored.copy_from_slice(chunk),
        Layout::Planes(fields) => each_field(ty, fields, chunk.len(), |block, place, len| {
            copy_field(&chunk[place..][..len], &mut stored[block..][..len]);
        }),
    }
}

/// Calls `copy` with each field's place among the blocks, its place in the chunk, and its length.
#[inline(always)]
fn each_field(
    ty: GgmlType,
    fields: &[Field],
    bytes: usize,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let count = bytes / ty.block_bytes();
    let mut before = 0;
    for (at, len) in fields {
        for i in 0..count {
            copy(i * ty.block_bytes() + at, count * before + i * len, *len);
        }
        before += len;
    }
}

/// A copy of a few bytes: the usual lengths as constants, so that they become a load and a store.
#[inline(always)]
fn copy_field(from: &[u8], to: &mut [u8]) {
    match (from.len(), to.len()) {
        (2, 2) => to[..2].copy_from_slice(&from[..2]),
        (4, 4) => to[..4].copy_from_slice(&from[..4]),
        (16, 16) => to[..16].copy_from_slice(&from[..16]),
        (32, 32) => to[..32].copy_from_slice(&from[..32]),
        (64, 64) => to[..64].copy_from_slice(&from[..64]),
        _ => to.copy_from_slice(from),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn types() -> impl Iterator<Item = GgmlType> {
        GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode())
    }

    #[test]
    fn fields_cover_each_byte_of_a_block_once() {
        for ty in types() {
            let Layout::Planes(fields) = Layout::of(ty) else {
                continue;
            };
            let mut bytes: Vec<usize> = fields.iter().flat_map(|(at, n)| *at..at + n).collect();
            bytes.sort_unstable();
            assert!(bytes.into_iter().eq(0..ty.block_bytes()), "{ty}");
        }
    }

    /// What is hashed where it lies is cut into units, which are whole wherever they lie.
    #[test]
    fn fields_are_whole_units_of_a_hash() {
        for ty in types() {
            let unit = glim_plan::fingerprint::unit(ty);
            let whole = [(0, ty.block_bytes())];
            let fields = match Layout::of(ty) {
                Layout::Planes(fields) => fields,
                Layout::Stored => &whole,
            };
            let is_whole = |(at, len): &Field| at % unit == 0 && len % unit == 0;
            assert!(fields.iter().all(is_whole), "{ty}");
        }
    }

    /// A field that is read 16 (8, 4, 2) bytes at a time begins at a multiple of them, for any number of blocks.
    #[test]
    fn planes_begin_where_their_fields_are_aligned() {
        for ty in types() {
            let Layout::Planes(fields) = Layout::of(ty) else {
                continue;
            };
            let mut before = 0usize;
            for (_, len) in fields {
                let align = (1usize << len.trailing_zeros()).min(16);
                assert!(before.is_multiple_of(align), "{ty}: {len} after {before}");
                before += len;
            }
        }
        for ty in types().filter(|ty| Layout::of(*ty) == Layout::Stored) {
            let n = ty.block_bytes();
            assert!(n.is_multiple_of(8) || ty.block_elems() == 1, "{ty}");
        }
    }

    #[test]
    fn chunks_of_any_size_make_the_same_memory_and_lead_back_to_the_file() {
        for ty in types() {
            const BLOCKS: usize = 7;
            let n = ty.block_bytes();
            let file: Vec<u8> = (0..BLOCKS * n).map(|i| (i * 37 % 251) as u8).collect();
            let upload = |size: usize| {
                let mut memory = vec![0; file.len()];
                for first in (0..BLOCKS).step_by(size) {
                    let count = size.min(BLOCKS - first);
                    let stored = &file[first * n..][..count * n];
                    let mut chunk = vec![0; stored.len()];
                    rearrange(ty, stored, &mut chunk);
                    for p in pieces(ty, BLOCKS, first, count) {
                        memory[p.at..][..p.len].copy_from_slice(&chunk[p.from..][..p.len]);
                    }
                    let mut back = vec![0; chunk.len()];
                    restore(ty, &chunk, &mut back);
                    assert_eq!(back, stored, "{ty}");
                }
                memory
            };
            let whole = upload(BLOCKS);
            for size in [1, 2, 3] {
                assert_eq!(upload(size), whole, "{ty} in chunks of {size}");
            }
        }
    }
}
