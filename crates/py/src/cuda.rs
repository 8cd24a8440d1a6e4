//! The few calls of NVIDIA's driver that staging needs. Its library is opened when it is first needed, so
//! that machines without a GPU never miss it. Nothing here knows of collectives or of Python.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

const NOT_READY: c_int = 600;

/// No times are taken, and whoever waits sleeps: the cores are needed for the network.
const EVENT_FLAGS: c_uint = 0x2 | 0x1;

/// Why something could not be asked of a GPU, or why it failed there.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CudaError {
    /// Install a driver of NVIDIA's that fits the PyTorch in use.
    #[error("NVIDIA's driver cannot be used: {0}")]
    Driver(String),
    /// The GPU's own word on it. Most of these end the use of the GPU by this process: start it again.
    #[error("{call} failed: {reason}")]
    Call { call: &'static str, reason: String },
}

type RawContext = *mut c_void;
type RawStream = *mut c_void;
type RawEvent = *mut c_void;

/// Declares the functions of the library and how they are found in it.
macro_rules! functions {
    ($($name:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        struct Driver { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Driver {
            /// # Safety
            /// `library` is NVIDIA's driver, open for as long as the process lives.
            unsafe fn find(library: *mut c_void) -> Result<Driver, CudaError> {
                Ok(Driver { $($name: {
                    // SAFETY: the library is open, and the name ends in a zero.
                    let address = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    if address.is_null() {
                        return Err(CudaError::Driver(format!("it has no {:?}", $symbol)));
                    }
                    // SAFETY: the symbol is a function, which NVIDIA documents to have this type.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(address)
                    }
                },)* })
            }
        }
    };
}

functions! {
    stream_context = c"cuStreamGetCtx" (RawStream, *mut RawContext);
    push_context = c"cuCtxPushCurrent_v2" (RawContext);
    pop_context = c"cuCtxPopCurrent_v2" (*mut RawContext);
    copy_down = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, RawStream);
    copy_up = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, RawStream);
    wait_for_event = c"cuStreamWaitEvent" (RawStream, RawEvent, c_uint);
    create_event = c"cuEventCreate" (*mut RawEvent, c_uint);
    record_event = c"cuEventRecord" (RawEvent, RawStream);
    query_event = c"cuEventQuery" (RawEvent);
    synchronize_event = c"cuEventSynchronize" (RawEvent);
    destroy_event = c"cuEventDestroy_v2" (RawEvent);
    error_string = c"cuGetErrorString" (c_int, *mut *const c_char);
}

impl Driver {
    fn get() -> Result<&'static Driver, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(Driver::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Driver, CudaError> {
        // SAFETY: the name ends in a zero. What the library does when loaded is what it does under PyTorch,
        // which has loaded it already where it has made a CUDA tensor.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(CudaError::Driver("libcuda.so.1 cannot be opened".into()));
        }
        // SAFETY: nobody closes it.
        unsafe { Driver::find(library) }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the function writes a pointer to text that lives as long as the library, or leaves it null.
        unsafe { (self.error_string)(code, &mut text) };
        let reason = match text.is_null() {
            true => format!("error {code}"),
            // SAFETY: see above; it ends in a zero.
            false => format!("{} ({code})", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        };
        Err(CudaError::Call { call, reason })
    }
}

/// A device as one library of this process uses it: PyTorch's, here.
#[derive(Clone, Copy)]
struct Context {
    driver: &'static Driver,
    raw: RawContext,
}

// SAFETY: contexts, streams and events are handles that the driver lets any thread use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The calling thread has a context; it gets back the one it had, which may be its user's.
struct Inside(Context);

impl Context {
    fn enter(self) -> Result<Inside, CudaError> {
        // SAFETY: the context is one that the driver gave us, and PyTorch keeps it until the process ends.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.push_context)(self.raw) })?;
        Ok(Inside(self))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: this thread pushed it.
        let _ = unsafe { (self.0.driver.pop_context)(&mut left) };
    }
}

/// A stream that somebody else owns.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    context: Context,
    raw: RawStream,
}

// SAFETY: see `Context`.
unsafe impl Send for Stream {}
// SAFETY: see `Context`.
unsafe impl Sync for Stream {}

impl Stream {
    /// # Safety
    /// `handle` is that of a stream, and not of a default one, that outlives this.
    pub(crate) unsafe fn from_handle(handle: usize) -> Result<Stream, CudaError> {
        let driver = Driver::get()?;
        let raw = handle as RawStream;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let code = unsafe { (driver.stream_context)(raw, &mut context) };
        driver.check("cuStreamGetCtx", code)?;
        Ok(Stream { context: Context { driver, raw: context }, raw })
    }

    /// Another stream of the same device.
    ///
    /// # Safety
    /// `handle` is that of a stream of this device, or 0 for its default stream.
    pub(crate) unsafe fn beside(&self, handle: usize) -> Stream {
        Stream { context: self.context, raw: handle as RawStream }
    }

    /// Copy from the device to the host, in a while.
    ///
    /// # Safety
    /// Both are `bytes` long and stay what they are until the stream has come so far.
    pub(crate) unsafe fn copy_down(
        &self,
        host: usize,
        device: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let _inside = self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: the caller's promise; the driver refuses what is not memory of the device.
        let code =
            unsafe { (driver.copy_down)(host as *mut c_void, device as u64, bytes, self.raw) };
        driver.check("cuMemcpyDtoHAsync", code)
    }

    /// Copy from the host to the device, in a while.
    ///
    /// # Safety
    /// As for [`Stream::copy_down`].
    pub(crate) unsafe fn copy_up(
        &self,
        device: usize,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let _inside = self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: the caller's promise; the driver refuses what is not memory of the device.
        let code =
            unsafe { (driver.copy_up)(device as u64, host as *const c_void, bytes, self.raw) };
        driver.check("cuMemcpyHtoDAsync", code)
    }

    /// An event for all that was asked of this stream until now.
    pub(crate) fn record(&self) -> Result<Event, CudaError> {
        let _inside = self.context.enter()?;
        let driver = self.context.driver;
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes the new event there.
        driver.check("cuEventCreate", unsafe { (driver.create_event)(&mut raw, EVENT_FLAGS) })?;
        let event = Event { context: self.context, raw };
        // SAFETY: event and stream are of the context that is current.
        driver.check("cuEventRecord", unsafe { (driver.record_event)(raw, self.raw) })?;
        Ok(event)
    }

    /// What is asked of this stream from now on waits for the event.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let _inside = self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: both exist; the driver keeps what it needs of the event if that is destroyed first.
        let code = unsafe { (driver.wait_for_event)(self.raw, event.raw, 0) };
        driver.check("cuStreamWaitEvent", code)
    }
}

/// A point that a stream comes to. Ours.
pub(crate) struct Event {
    context: Context,
    raw: RawEvent,
}

// SAFETY: see `Context`.
unsafe impl Send for Event {}
// SAFETY: see `Context`.
unsafe impl Sync for Event {}

impl Event {
    /// Whether the stream has come there, or never will.
    pub(crate) fn is_past(&self) -> bool {
        let Ok(_inside) = self.context.enter() else { return true };
        // SAFETY: it was not destroyed.
        unsafe { (self.context.driver.query_event)(self.raw) != NOT_READY }
    }

    /// Wait until the stream has come there. Bounded by what the device was asked to do.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let _inside = self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: it was not destroyed.
        driver.check("cuEventSynchronize", unsafe { (driver.synchronize_event)(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_inside) = self.context.enter() else { return };
        // SAFETY: nobody else has it. Nothing can be done about a failure.
        let _ = unsafe { (self.context.driver.destroy_event)(self.raw) };
    }
}
