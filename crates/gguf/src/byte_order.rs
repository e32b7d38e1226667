//! Files of the other byte order.
//!
//! Version 3 of GGUF allows files in which every number is big-endian, those inside tensors too:
//! machines such as IBM Z write them for themselves. Their header is read number by number as any
//! other. Their tensors cannot be handed out as they lie in the mapped file, so each is copied and
//! turned around when it is first asked for, and the copy is kept as long as the model is open. A
//! model read whole thus takes its own size in memory once more; whoever opens such a file often
//! should convert it.

use std::sync::OnceLock;

use glim_quant::swap_byte_order;

use crate::tensor::TensorInfo;

/// How the numbers of a file are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first, as nearly all files are.
    Little,
    /// Most significant byte first.
    Big,
}

/// A tensor's bytes in little-endian order, once somebody has asked for them.
#[derive(Default)]
pub(crate) struct Turned(OnceLock<Box<[u8]>>);

impl Turned {
    /// The little-endian bytes of `tensor`, which are `stored` in big-endian order. Types of single
    /// bytes need no copy.
    pub(crate) fn bytes<'a>(&'a self, tensor: &TensorInfo, stored: &'a [u8]) -> &'a [u8] {
        if tensor.ty.has_byte_order() == Some(false) {
            return stored;
        }
        self.0.get_or_init(|| {
            let mut copy = Box::<[u8]>::from(stored);
            let turned = swap_byte_order(tensor.ty, &mut copy);
            // The reader refuses types of unknown layout, and its sizes are whole blocks.
            assert!(turned.is_ok(), "tensor `{}`: {turned:?}", tensor.name);
            copy
        })
    }
}
