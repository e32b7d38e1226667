//! A logical tensor piece by piece, so that it need not stand in memory whole.

use std::borrow::Cow;

use super::{Checkpoint, Half, Origin, Source, TensorDesc};
use crate::error::ModelError;

/// Most elements of a piece that must be decoded: 64 MiB of f32.
const MAX_DECODED_ELEMENTS: usize = 1 << 24;

/// Consecutive bytes of a tensor.
pub type Pieces<'a> = Box<dyn Iterator<Item = Cow<'a, [u8]>> + 'a>;

impl TensorDesc {
    /// The stored tensors that this one is made of: indices into the source's own list.
    pub(crate) fn stored(&self) -> &[usize] {
        match &self.origin {
            Origin::Whole(index) | Origin::GateUp(index, _) | Origin::KvB(index, _) => {
                std::slice::from_ref(index)
            }
            Origin::Stack(indices) => indices,
        }
    }
}

impl Checkpoint {
    /// The bytes of [`Self::data`] as consecutive pieces of whole rows.
    ///
    /// The experts of a layer, gigabytes in real models, come one at a time where they lie apart or fused, and an FP8
    /// matrix comes some rows at a time; what is rearranged otherwise is one piece. Whatever need not be rearranged or
    /// decoded is borrowed from the mapping.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub fn pieces<'a>(&'a self, t: &'a TensorDesc) -> Result<Pieces<'a>, ModelError> {
        self.check_decodable(t)?;
        match (&t.origin, &self.source) {
            (Origin::Stack(_) | Origin::GateUp(..), _) => {
                let experts = t.shape.first().copied().unwrap_or_default();
                Ok(Box::new(
                    (0..experts).filter_map(|expert| self.expert_bytes(t, expert)),
                ))
            }
            (Origin::Whole(index), Source::Hf(folder)) if folder.tensors()[*index].is_fp8() => {
                let tensor = &folder.tensors()[*index];
                let (rows, cols) = (t.shape[0], t.elements() / t.shape[0].max(1));
                let band = (MAX_DECODED_ELEMENTS / cols.max(1)).max(1);
                let matrix = folder.fp8(tensor);
                let decode = move |start: usize| {
                    let rows = start..rows.min(start + band);
                    matrix.map(|matrix| Cow::Owned(matrix.decode(rows)))
                };
                Ok(Box::new((0..rows).step_by(band).filter_map(decode)))
            }
            _ => Ok(Box::new(std::iter::once(self.data(t)?))),
        }
    }

    /// One item of a stack: the bytes of index `item` of the first axis; none beyond its end.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn item(&self, t: &TensorDesc, item: usize) -> Result<Cow<'_, [u8]>, ModelError> {
        self.check_decodable(t)?;
        if let Some(bytes) = self.expert_bytes(t, item) {
            return Ok(bytes);
        }
        let (data, len) = (self.data(t)?, item_bytes(t));
        Ok(Cow::Owned(
            part(&data, item * len, len).unwrap_or_default().to_vec(),
        ))
    }

    /// One expert, where experts are stored apart, stacked, or with gate and up fused.
    fn expert_bytes(&self, t: &TensorDesc, expert: usize) -> Option<Cow<'_, [u8]>> {
        let len = item_bytes(t);
        let (index, start) = match &t.origin {
            Origin::Stack(indices) => return Some(self.source.stored(*indices.get(expert)?)),
            Origin::Whole(index) => (*index, expert * len),
            Origin::GateUp(index, Half::First) => (*index, 2 * expert * len),
            Origin::GateUp(index, Half::Second) => (*index, (2 * expert + 1) * len),
            Origin::KvB(..) => return None,
        };
        match self.source.stored(index) {
            Cow::Borrowed(bytes) => part(bytes, start, len).map(Cow::Borrowed),
            Cow::Owned(bytes) => part(&bytes, start, len).map(|bytes| Cow::Owned(bytes.to_vec())),
        }
    }
}

/// Bytes of one index of the first axis.
fn item_bytes(t: &TensorDesc) -> usize {
    t.byte_len() / t.shape.first().copied().unwrap_or(1).max(1)
}

fn part(bytes: &[u8], start: usize, len: usize) -> Option<&[u8]> {
    bytes.get(start..)?.get(..len)
}
