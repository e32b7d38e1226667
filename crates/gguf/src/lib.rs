//! Reads, checks and writes GGUF files, single and split.
//!
//! [`Gguf::open`] maps a model's files and checks everything that stands in their headers before it
//! hands out a single byte; a wrong file ends in one sentence ([`GgufError`]). [`Writer`] makes
//! such files. Every bound has a name in [`limits`].
//!
//! The crate does not know what a key or a tensor means, except for the container's own keys
//! `general.alignment` and `split.*`. Of the types it knows the block sizes (from `glim-quant`), no
//! more.
//!
//! Big-endian files are read too: [`Gguf::data`] hands out little-endian blocks whatever the file
//! has ([`ByteOrder`]). [`Writer`] writes little-endian files only.
//!
//! Files are mapped, not read. If another process truncates a file while it is mapped, the next
//! read beyond its new end raises SIGBUS: replace model files by renaming a new one over them.
//!
//! ```
//! use glim_gguf::{Gguf, Writer};
//! use glim_quant::GgmlType;
//!
//! let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let mut writer = Writer::new();
//! writer.set("general.architecture", "glm-dsa");
//! writer.set("glm-dsa.block_count", 79u32);
//! writer.tensor("output_norm.weight", &[3, 2], GgmlType::F32, &data); // ggml's order: fastest first
//!
//! let model = Gguf::from_bytes("example.gguf", writer.to_bytes("example.gguf")?)?;
//! assert_eq!(model.metadata().str("general.architecture")?, Some("glm-dsa"));
//! assert_eq!(model.metadata().uint("glm-dsa.block_count")?, Some(79));
//!
//! let tensor = model.tensor("output_norm.weight").expect("was written above");
//! assert_eq!(tensor.shape(), [2, 3]); // row-major: slowest first
//! assert_eq!(model.data(tensor), data);
//!
//! let error = model.metadata().str("glm-dsa.block_count").unwrap_err();
//! assert_eq!(error.to_string(), "example.gguf: key `glm-dsa.block_count` is 79 (u32), expected a string");
//! # Ok::<(), glim_gguf::GgufError>(())
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod byte_order;
mod cursor;
mod encode;
mod error;
mod extents;
pub mod limits;
mod metadata;
mod mmap;
mod model;
mod new_file;
mod reader;
mod split;
mod tensor;
mod value;
mod writer;

pub use byte_order::ByteOrder;
pub use error::GgufError;
pub use metadata::{Metadata, UintOrArray};
pub use model::{Gguf, Part};
pub use tensor::TensorInfo;
pub use value::{Array, Strings, Value};
pub use writer::{Produce, Source, Writer};
