//! Runs a session from several threads at once, with the only unsafe code in this crate.
//!
//! `ort` allows one thread at a time, since some execution providers (CUDA, DirectML, …) require it. ONNX Runtime
//! itself allows concurrent `Run` calls: its CPU kernels are stateless, and the CPU is the only execution provider
//! here. A shared session saves a second copy of the weights: 30 MB of 110 for all-MiniLM-L6-v2.

use std::{
    ffi::{CString, c_char},
    ptr::{self, NonNull},
};

use ort::{
    AsPointer,
    session::{Session, SessionInputValue},
    value::DynValue,
};

use kivu_base::{Error, Result};
use kivu_core::backend::{Signature, TensorSpec};

/// A graph's input and output names as C strings.
#[derive(Debug)]
pub struct Names {
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl Names {
    pub fn new(signature: &Signature) -> Result<Self> {
        let names = |specs: &[TensorSpec]| {
            specs
                .iter()
                .map(|spec| CString::new(spec.name.as_str()))
                .collect::<Result<_, _>>()
        };
        let unusable =
            |error| Error::model_because("expected names without NUL in the graph", error);
        Ok(Self {
            inputs: names(&signature.inputs).map_err(unusable)?,
            outputs: names(&signature.outputs).map_err(unusable)?,
        })
    }
}

/// Runs `session` on one value per input, and returns one value per output.
#[expect(
    unsafe_code,
    reason = "`ort` has no safe way to run one session on several threads at once"
)]
pub fn run(
    session: &Session,
    names: &Names,
    inputs: &[SessionInputValue<'_>],
) -> ort::Result<Vec<DynValue>> {
    assert_eq!(
        inputs.len(),
        names.inputs.len(),
        "the signature was checked"
    );
    let pointers = |names: &[CString]| {
        names
            .iter()
            .map(|name| name.as_ptr())
            .collect::<Vec<*const c_char>>()
    };
    let (input_names, output_names) = (pointers(&names.inputs), pointers(&names.outputs));
    let inputs: Vec<_> = inputs.iter().map(|value| value.ptr()).collect();
    let mut outputs = vec![ptr::null_mut(); output_names.len()];
    let inner = session.inner();
    // SAFETY: the arrays have the lengths passed with them and live until the call returns, as does the session.
    // ONNX Runtime documents that `Run` may be called concurrently on one session. Execution providers may break
    // that promise, but `Session::open` registers none besides the CPU's, which keeps it.
    unsafe {
        let status = (ort::api().Run)(
            inner.ptr().cast_mut(),
            ptr::null(),
            input_names.as_ptr(),
            inputs.as_ptr(),
            inputs.len(),
            output_names.as_ptr(),
            output_names.len(),
            outputs.as_mut_ptr(),
        );
        ort::Error::result_from_status(status)?;
    }
    let no_value = || ort::Error::new("ONNX Runtime returned no value for an output");
    // SAFETY: after a successful run each output is a new value from the session's allocator, without another owner.
    let own = |value| unsafe { DynValue::from_ptr(value, Some(session.allocator())) };
    outputs
        .into_iter()
        .map(|value| NonNull::new(value).map(own).ok_or_else(no_value))
        .collect()
}
