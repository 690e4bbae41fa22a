//! The one unsafe corner: running a session from several threads at once.
//!
//! `ort` lets a session run on one thread at a time, for the sake of execution providers (CUDA, DirectML, …)
//! that cannot do otherwise. ONNX Runtime itself guarantees that `Run` may be called concurrently, its CPU
//! kernels being stateless, and the CPU's is the only execution provider here. Sharing one session is what
//! keeps a second CPU from costing a second copy of the weights: 30 MB of 110 for all-MiniLM-L6-v2.

use std::{
    ffi::{CString, c_char},
    ptr::{self, NonNull},
};

use ort::{
    AsPointer,
    session::{Session, SessionInputValue},
    value::DynValue,
};

use crate::{
    backend::{Signature, TensorSpec},
    error::{Error, Result},
};

/// The names of a graph's inputs and outputs as C wants them.
#[derive(Debug)]
pub(super) struct Names {
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl Names {
    pub(super) fn new(signature: &Signature) -> Result<Self> {
        let names = |specs: &[TensorSpec]| {
            specs.iter().map(|spec| CString::new(spec.name.as_str())).collect::<Result<_, _>>()
        };
        let unusable = |error| Error::model_because("expected names without NUL in the graph", error);
        Ok(Self {
            inputs: names(&signature.inputs).map_err(unusable)?,
            outputs: names(&signature.outputs).map_err(unusable)?,
        })
    }
}

/// Runs `session` on one value for each of its inputs; gives one value for each of its outputs.
#[expect(unsafe_code, reason = "`ort` has no safe way to run one session on several threads")]
pub(super) fn run(
    session: &Session,
    names: &Names,
    inputs: &[SessionInputValue<'_>],
) -> ort::Result<Vec<DynValue>> {
    assert_eq!(inputs.len(), names.inputs.len(), "the signature was checked");
    let pointers = |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
    let (input_names, output_names) = (pointers(&names.inputs), pointers(&names.outputs));
    let inputs: Vec<_> = inputs.iter().map(|value| value.ptr()).collect();
    let mut outputs = vec![ptr::null_mut(); output_names.len()];
    let inner = session.inner();
    // SAFETY: names, inputs and outputs are arrays of the lengths given with them, and live until the call
    // returns; the session lives as long as `session`. `Run` changes nothing of the session that it does not
    // guard itself: ONNX Runtime promises so for concurrent calls, and no execution provider but the CPU's,
    // which keeps that promise, is ever registered (`Session::open`).
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
    let no_value = || ort::Error::new("the runtime gave no value for an output");
    // SAFETY: after a run without error every output is a new value, which nobody else owns, made by the
    // session's own allocator.
    let own = |value| unsafe { DynValue::from_ptr(value, Some(session.allocator())) };
    outputs.into_iter().map(|value| NonNull::new(value).map(own).ok_or_else(no_value)).collect()
}
