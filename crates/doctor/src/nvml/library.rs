//! `libnvidia-ml.so.1`, as far as we call it.
//!
//! Bound by hand: a page instead of a crate that brings a second `thiserror` and a second loader. Names, types and numbers are those of
//! NVIDIA's `nvml.h` (documentation: docs.nvidia.com/deploy/nvml-api). A function that an older driver lacks is an answer that is not
//! supported, nothing more.
#![allow(unsafe_code, reason = "functions of a C library are called")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use super::Memory;
use crate::reading::{Reading, Unread};

/// `nvmlDevice_t`.
pub(super) type Device = *mut c_void;

/// `nvmlReturn_t`: what is told apart.
const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const NO_PERMISSION: c_int = 4;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;

/// Longest name, identifier or version that NVML gives.
const TEXT: usize = 96;
/// Most processes on one GPU that are told.
const MAX_PROCESSES: usize = 4096;

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
#[derive(Default)]
struct Bar1Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which the functions of version 3 fill.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlGpuFabricInfo_t`.
#[repr(C)]
#[derive(Default)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

/// The library, initialised.
pub(super) struct Loaded(Library);

/// Calls a function of the library by name; the arguments' types are the ones given.
macro_rules! call {
    ($loaded:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the type is that of the function of this name in `nvml.h`.
        match unsafe { $loaded.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(concat!($name, "\0").as_bytes()) } {
            Ok(function) => {
                // SAFETY: what is pointed to lives until the call has ended, is as long as the function was told, and is of the type
                // that `nvml.h` gives; devices come from this library.
                unsafe { function($($argument),*) }
            }
            Err(_) => NOT_SUPPORTED,
        }
    }};
}

/// A reading of a value that a function writes.
macro_rules! value {
    ($loaded:expr, $name:literal, $device:expr, $type:ty) => {{
        let mut value = <$type>::default();
        let code = call!($loaded, $name, (Device, *mut $type), $device, &mut value);
        $loaded.outcome($name, code, value)
    }};
}

impl Loaded {
    /// Opens and initialises it.
    pub(super) fn open() -> Result<Self, Unread> {
        let open = |name| {
            // SAFETY: it is NVIDIA's library, whose initialisers may run at any time.
            unsafe { Library::new(name) }
        };
        let library = open("libnvidia-ml.so.1").or_else(|_| open("libnvidia-ml.so"));
        let loaded = Self(library.map_err(|_| Unread::Absent)?);
        let code = call!(loaded, "nvmlInit_v2", (),);
        match code {
            SUCCESS => Ok(loaded),
            _ => {
                let text = loaded.error(code);
                // It was not initialised, so it must not be shut down.
                std::mem::forget(loaded);
                Err(Unread::Other(format!("nvmlInit_v2: {text}")))
            }
        }
    }

    fn error(&self, code: c_int) -> String {
        // SAFETY: the function of this name gives a static string for any code.
        let function = unsafe {
            self.0
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"nvmlErrorString\0")
        };
        // SAFETY: as above.
        let text = function.map(|function| unsafe { function(code) });
        match text {
            // SAFETY: as above.
            Ok(text) if !text.is_null() => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
            _ => format!("error {code}"),
        }
    }

    fn outcome<T>(&self, name: &str, code: c_int, value: T) -> Reading<T> {
        match code {
            SUCCESS => Reading::Known(value),
            NOT_SUPPORTED => Unread::Unsupported.into(),
            NO_PERMISSION => Unread::NeedsRoot.into(),
            NOT_FOUND => Unread::Absent.into(),
            _ => Reading::unclear(format!("{name}: {}", self.error(code))),
        }
    }

    pub(super) fn driver(&self) -> Reading<String> {
        let mut text = [0; TEXT];
        let code = call!(
            self,
            "nvmlSystemGetDriverVersion",
            (*mut c_char, c_uint),
            text.as_mut_ptr(),
            TEXT as c_uint
        );
        self.outcome("nvmlSystemGetDriverVersion", code, string(&text))
    }

    pub(super) fn cuda(&self) -> Reading<u32> {
        let mut version: c_int = 0;
        let code = call!(
            self,
            "nvmlSystemGetCudaDriverVersion_v2",
            (*mut c_int),
            &mut version
        );
        self.outcome(
            "nvmlSystemGetCudaDriverVersion_v2",
            code,
            version.max(0) as u32,
        )
    }

    pub(super) fn count(&self) -> Reading<u32> {
        let mut count: c_uint = 0;
        let code = call!(self, "nvmlDeviceGetCount_v2", (*mut c_uint), &mut count);
        self.outcome("nvmlDeviceGetCount_v2", code, count)
    }

    pub(super) fn device(&self, index: u32) -> Reading<Device> {
        let mut device: Device = std::ptr::null_mut();
        let code = call!(
            self,
            "nvmlDeviceGetHandleByIndex_v2",
            (c_uint, *mut Device),
            index,
            &mut device
        );
        self.outcome("nvmlDeviceGetHandleByIndex_v2", code, device)
    }

    fn text(&self, device: Device, name: &'static str) -> Reading<String> {
        let mut text = [0; TEXT];
        let length = TEXT as c_uint;
        let code = match name {
            "nvmlDeviceGetName" => call!(
                self,
                "nvmlDeviceGetName",
                (Device, *mut c_char, c_uint),
                device,
                text.as_mut_ptr(),
                length
            ),
            _ => call!(
                self,
                "nvmlDeviceGetUUID",
                (Device, *mut c_char, c_uint),
                device,
                text.as_mut_ptr(),
                length
            ),
        };
        self.outcome(name, code, string(&text))
    }

    pub(super) fn name(&self, device: Device) -> Reading<String> {
        self.text(device, "nvmlDeviceGetName")
    }

    pub(super) fn uuid(&self, device: Device) -> Reading<String> {
        self.text(device, "nvmlDeviceGetUUID")
    }

    pub(super) fn bus_id(&self, device: Device) -> Reading<String> {
        let mut pci = PciInfo::zeroed();
        let code = call!(
            self,
            "nvmlDeviceGetPciInfo_v3",
            (Device, *mut PciInfo),
            device,
            &mut pci
        );
        self.outcome("nvmlDeviceGetPciInfo_v3", code, string(&pci.bus_id))
    }

    pub(super) fn minor(&self, device: Device) -> Reading<u32> {
        value!(self, "nvmlDeviceGetMinorNumber", device, c_uint)
    }

    pub(super) fn capability(&self, device: Device) -> Reading<(u32, u32)> {
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        let name = "nvmlDeviceGetCudaComputeCapability";
        let code = call!(
            self,
            "nvmlDeviceGetCudaComputeCapability",
            (Device, *mut c_int, *mut c_int),
            device,
            &mut major,
            &mut minor
        );
        self.outcome(name, code, (major.max(0) as u32, minor.max(0) as u32))
    }

    /// Version 2 tells what the driver keeps to itself apart from what processes use; version 1 adds the two.
    pub(super) fn memory(&self, device: Device) -> Reading<Memory> {
        let mut memory = MemoryV2 {
            // `NVML_STRUCT_VERSION(Memory, 2)`: size and version.
            version: size_of::<MemoryV2>() as c_uint | 2 << 24,
            ..MemoryV2::default()
        };
        let code = call!(
            self,
            "nvmlDeviceGetMemoryInfo_v2",
            (Device, *mut MemoryV2),
            device,
            &mut memory
        );
        let memory = Memory {
            total: memory.total,
            reserved: memory.reserved,
            used: memory.used,
            free: memory.free,
        };
        self.outcome("nvmlDeviceGetMemoryInfo_v2", code, memory)
    }

    pub(super) fn bar1(&self, device: Device) -> Reading<u64> {
        value!(self, "nvmlDeviceGetBAR1MemoryInfo", device, Bar1Memory).map(|memory| memory.total)
    }

    pub(super) fn mig(&self, device: Device) -> Reading<(u32, u32)> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        let code = call!(
            self,
            "nvmlDeviceGetMigMode",
            (Device, *mut c_uint, *mut c_uint),
            device,
            &mut current,
            &mut pending
        );
        self.outcome("nvmlDeviceGetMigMode", code, (current, pending))
    }

    pub(super) fn mig_places(&self, device: Device) -> Reading<u32> {
        value!(self, "nvmlDeviceGetMaxMigDeviceCount", device, c_uint)
    }

    pub(super) fn has_mig_instance(&self, device: Device, index: u32) -> bool {
        let mut instance: Device = std::ptr::null_mut();
        let code = call!(
            self,
            "nvmlDeviceGetMigDeviceHandleByIndex",
            (Device, c_uint, *mut Device),
            device,
            index,
            &mut instance
        );
        code == SUCCESS
    }

    pub(super) fn compute_mode(&self, device: Device) -> Reading<u32> {
        value!(self, "nvmlDeviceGetComputeMode", device, c_uint)
    }

    pub(super) fn persistence(&self, device: Device) -> Reading<bool> {
        value!(self, "nvmlDeviceGetPersistenceMode", device, c_uint).map(|state| state == 1)
    }

    pub(super) fn power_limit(&self, device: Device) -> Reading<u32> {
        value!(self, "nvmlDeviceGetPowerManagementLimit", device, c_uint)
    }

    pub(super) fn power_default(&self, device: Device) -> Reading<u32> {
        value!(
            self,
            "nvmlDeviceGetPowerManagementDefaultLimit",
            device,
            c_uint
        )
    }

    /// The newer name since driver 535.
    pub(super) fn clock_reasons(&self, device: Device) -> Reading<u64> {
        let reasons = value!(
            self,
            "nvmlDeviceGetCurrentClocksEventReasons",
            device,
            c_ulonglong
        );
        match reasons {
            Reading::Known(_) => reasons,
            _ => value!(
                self,
                "nvmlDeviceGetCurrentClocksThrottleReasons",
                device,
                c_ulonglong
            ),
        }
    }

    /// Now, and what the GPU itself is capable of: `MaxPcieLinkGeneration` is also bounded by the slot.
    pub(super) fn link_generation(&self, device: Device) -> Reading<(u32, u32)> {
        let most = value!(
            self,
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            device,
            c_uint
        );
        let most = match most {
            Reading::Known(_) => most,
            _ => value!(self, "nvmlDeviceGetMaxPcieLinkGeneration", device, c_uint),
        };
        value!(self, "nvmlDeviceGetCurrPcieLinkGeneration", device, c_uint)
            .and_then(|now| most.map(|most| (now, most)))
    }

    pub(super) fn link_width(&self, device: Device) -> Reading<(u32, u32)> {
        let most = value!(self, "nvmlDeviceGetMaxPcieLinkWidth", device, c_uint);
        value!(self, "nvmlDeviceGetCurrPcieLinkWidth", device, c_uint)
            .and_then(|now| most.map(|most| (now, most)))
    }

    pub(super) fn replays(&self, device: Device) -> Reading<u32> {
        value!(self, "nvmlDeviceGetPcieReplayCounter", device, c_uint)
    }

    /// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`, `NVML_VOLATILE_ECC`.
    pub(super) fn ecc_uncorrected(&self, device: Device) -> Reading<u64> {
        let mut count: c_ulonglong = 0;
        let code = call!(
            self,
            "nvmlDeviceGetTotalEccErrors",
            (Device, c_int, c_int, *mut c_ulonglong),
            device,
            1,
            0,
            &mut count
        );
        self.outcome("nvmlDeviceGetTotalEccErrors", code, count)
    }

    /// Corrected, uncorrected, pending, failed.
    pub(super) fn remapped(&self, device: Device) -> Reading<[u32; 4]> {
        let mut rows: [c_uint; 4] = [0; 4];
        let [a, b, c, d] = &mut rows;
        let code = call!(
            self,
            "nvmlDeviceGetRemappedRows",
            (Device, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint),
            device,
            a,
            b,
            c,
            d
        );
        self.outcome("nvmlDeviceGetRemappedRows", code, rows)
    }

    pub(super) fn fabric_state(&self, device: Device) -> Reading<u8> {
        value!(self, "nvmlDeviceGetGpuFabricInfo", device, FabricInfo).map(|info| info.state)
    }

    /// Whether a link is up; not supported: there is none of this number.
    pub(super) fn nvlink(&self, device: Device, link: u32) -> Reading<bool> {
        let mut active: c_uint = 0;
        let code = call!(
            self,
            "nvmlDeviceGetNvLinkState",
            (Device, c_uint, *mut c_uint),
            device,
            link,
            &mut active
        );
        self.outcome("nvmlDeviceGetNvLinkState", code, active == 1)
    }

    pub(super) fn nvlink_remote(&self, device: Device, link: u32) -> Reading<String> {
        let mut pci = PciInfo::zeroed();
        let name = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
        let code = call!(
            self,
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            (Device, c_uint, *mut PciInfo),
            device,
            link,
            &mut pci
        );
        self.outcome(name, code, string(&pci.bus_id))
    }

    /// `nvmlGpuP2PStatus_t` of a capability: 0 read, 1 write, 3 atomics.
    pub(super) fn p2p(&self, first: Device, second: Device, capability: c_int) -> Reading<u32> {
        let mut status: c_int = 0;
        let code = call!(
            self,
            "nvmlDeviceGetP2PStatus",
            (Device, Device, c_int, *mut c_int),
            first,
            second,
            capability,
            &mut status
        );
        self.outcome("nvmlDeviceGetP2PStatus", code, status.max(0) as u32)
    }

    /// Numbers and bytes of the processes that use a GPU in one way. `u64::MAX` bytes: the driver does not say.
    pub(super) fn processes(&self, device: Device, of: super::Use) -> Reading<Vec<(u32, u64)>> {
        let mut room = 64;
        loop {
            let mut list = vec![ProcessInfo::default(); room];
            let mut count = room as c_uint;
            macro_rules! list {
                ($name:literal) => {
                    call!(
                        self,
                        $name,
                        (Device, *mut c_uint, *mut ProcessInfo),
                        device,
                        &mut count,
                        list.as_mut_ptr()
                    )
                };
            }
            let code = match of {
                super::Use::Compute => list!("nvmlDeviceGetComputeRunningProcesses_v3"),
                super::Use::Graphics => list!("nvmlDeviceGetGraphicsRunningProcesses_v3"),
                super::Use::Mps => list!("nvmlDeviceGetMPSComputeRunningProcesses_v3"),
            };
            if code == INSUFFICIENT_SIZE && room < MAX_PROCESSES {
                room = MAX_PROCESSES;
                continue;
            }
            list.truncate(count as usize);
            let list = list
                .iter()
                .map(|process| (process.pid, process.used_memory))
                .collect();
            return self.outcome("nvmlDeviceGet*RunningProcesses_v3", code, list);
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        call!(self, "nvmlShutdown", (),);
    }
}

impl PciInfo {
    fn zeroed() -> Self {
        Self {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            bus_id: [0; 32],
        }
    }
}

/// Text up to its zero, or all of it if there is none.
fn string(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text
        .iter()
        .take_while(|&&c| c != 0)
        .map(|&c| c as u8)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that the library was compiled with: `NVML_STRUCT_VERSION` of `nvmlMemory_v2_t` is 0x02000028.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<MemoryV2>(), 0x28);
        assert_eq!(size_of::<ProcessInfo>(), 24);
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<FabricInfo>(), 28);
    }

    #[test]
    fn text_without_an_end_is_all_of_it() {
        assert_eq!(string(&[b'a' as c_char, 0, b'b' as c_char]), "a");
        assert_eq!(string(&[b'a' as c_char; 3]), "aaa");
    }
}
