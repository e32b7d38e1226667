//! The CUDA backend: plans become lists of kernel launches, and those captured graphs.
#![deny(unsafe_code)]
