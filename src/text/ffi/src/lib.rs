//! C entry points over tokenizers, minijinja and llguidance for the C++ module `text`.
//! Results and messages leave through a sink callback, so no memory changes owner at the border.
//! Every entry catches panics; pointers are checked by the C++ callers, which are its only users.

mod grammar;
mod python;
mod template;
mod tokenizer;

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

/// Where an entry writes its bytes: its result, or a message when it fails.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Output {
    sink: unsafe extern "C" fn(context: *mut c_void, data: *const u8, size: usize),
    context: *mut c_void,
}

impl Output {
    fn write(self, bytes: &[u8]) {
        // SAFETY: the caller supplies a sink that copies the bytes into `context` before it returns.
        unsafe { (self.sink)(self.context, bytes.as_ptr(), bytes.len()) }
    }
}

/// The codes of `FfiCode` in ffi_api.h.
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum Code {
    InvalidArgument = 1,
    ResourceExhausted = 2,
    Unimplemented = 3,
    Internal = 4,
}

pub struct Failure(pub Code, pub String);

/// A failure caused by what the caller passed in.
pub fn invalid(message: impl std::fmt::Display) -> Failure {
    Failure(Code::InvalidArgument, message.to_string())
}

/// Runs one entry: 0 on success, else the code, with the message in `output`.
fn entry(output: Output, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(Failure(Code::Internal, format!("internal error: {text}")))
    });
    match outcome {
        Ok(()) => 0,
        Err(Failure(code, message)) => {
            output.write(message.as_bytes());
            code as i32
        }
    }
}

/// SAFETY: `data` points to `size` bytes that outlive the call.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

/// SAFETY: as `slice`.
unsafe fn text<'a>(data: *const u8, size: usize, what: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(slice(data, size)).map_err(|_| invalid(format!("{what} is not valid UTF-8")))
}
