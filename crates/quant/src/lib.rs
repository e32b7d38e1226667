//! Block formats of GGUF tensors: their ids, sizes, scalar decoding and encoding. This crate is the
//! *truth* that every faster kernel is compared with.
//!
//! A quantised tensor is a sequence of blocks. Each block holds a fixed number of elements in a
//! fixed number of bytes, so the size of a row follows from the type alone. [`GgmlType`] names
//! every type and knows its sizes; [`dequantize`] turns whole blocks into `f32`, bit for bit as
//! gguf-py does; [`quantize`] turns `f32` into blocks, byte for byte as gguf-py or ggml do (not of the
//! IQ1, IQ2 and IQ3 types), and [`quantize_weighted`] heeds how much each column matters. [`tables`] holds the numbers that some types look up, for kernels that need them too.
//!
//! The crate sees bytes only: it does not know files, tensors, shapes or threads.
//!
//! ```
//! use glim_quant::{GgmlType, dequantize, quantize};
//!
//! // One Q8_0 block: an f16 scale (0.5 is 0x3800) and 32 signed bytes.
//! let mut block = vec![0u8; GgmlType::Q8_0.block_bytes()];
//! block[..2].copy_from_slice(&0x3800u16.to_le_bytes());
//! block[2] = 6;
//! block[33] = (-3i8) as u8;
//!
//! let mut values = [0f32; 32];
//! dequantize(GgmlType::Q8_0, &block, &mut values)?;
//! assert_eq!(values[0], 3.0);
//! assert_eq!(values[31], -1.5);
//!
//! let mut encoded = vec![0; GgmlType::Q4_0.block_bytes()];
//! quantize(GgmlType::Q4_0, &values, &mut encoded)?;
//! # Ok::<(), glim_quant::QuantError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod blocks;
mod encode;
mod endian;
mod float;
mod fp4;
mod grid;
mod iq4;
mod k_quants;
mod legacy;
mod registry;
pub mod scan;
pub mod tables;
mod ternary;

pub use encode::{quantize, quantize_weighted};
pub use endian::swap_byte_order;
pub use registry::{GgmlType, QuantError, dequantize};
