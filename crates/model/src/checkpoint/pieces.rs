//! A logical tensor piece by piece, so that it need not stand in memory whole.

use std::borrow::Cow;

use super::{Checkpoint, Origin, TensorDesc};
use crate::error::ModelError;

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
    /// The experts of a layer, gigabytes in real models, come one at a time and borrowed from the mapping; what is
    /// rearranged otherwise is one piece.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub fn pieces<'a>(
        &'a self,
        t: &'a TensorDesc,
    ) -> Result<Box<dyn Iterator<Item = Cow<'a, [u8]>> + 'a>, ModelError> {
        match &t.origin {
            Origin::Stack(indices) => {
                self.check_decodable(t)?;
                let piece = |&index: &usize| Cow::Borrowed(self.source.stored(index).2);
                Ok(Box::new(indices.iter().map(piece)))
            }
            _ => Ok(Box::new(std::iter::once(self.data(t)?))),
        }
    }
}
