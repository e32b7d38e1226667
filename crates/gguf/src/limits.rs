//! Every bound that the reader enforces, by name.
//!
//! Counts are bounded twice: by a limit here, and by what the bytes that are left in the file could
//! hold at most. So a header never makes us allocate more than a small multiple of the file's own
//! size.

/// Keys in one file. Real models have fewer than a hundred.
pub const MAX_KEYS: u64 = 1 << 16;

/// Tensors in one file. GLM-5 has about 1 800; with one tensor for each expert it would be 60 000.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Bytes of a key. The GGUF specification allows 2¹⁶ − 1.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Bytes of a tensor's name. ggml itself holds 63.
pub const MAX_TENSOR_NAME_BYTES: u64 = 255;

/// Bytes of one string value, alone or in an array. The longest in real files, chat templates, have
/// a few tens of kB.
pub const MAX_STRING_BYTES: u64 = 1 << 26;

/// Elements of one array. GLM-5's longest, the merges, has 321 649.
pub const MAX_ARRAY_LEN: u64 = 1 << 26;

/// Dimensions of a tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMS: u64 = 4;

/// Largest `general.alignment`, in bytes. It must be a power of two as well.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// Alignment of the data section and of each tensor when `general.alignment` is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Parts of a split set. Some publishers put each tensor into a part of its own; each part is one
/// memory mapping, of which Linux allows a process 65 530 by default.
pub const MAX_PARTS: u64 = 1 << 14;

/// Entries that are allocated ahead when a count has not been seen to be true yet.
pub(crate) const PREALLOCATED_ENTRIES: u64 = 1024;

/// Elements of an array that `Display` shows.
pub(crate) const DISPLAYED_ELEMENTS: usize = 8;
