//! The class `Model`, with the methods of the native module for Node.js.

use std::future::Future;

use futures::FutureExt;
use js_sys::{Array, Float32Array, Int8Array, Object, Reflect, Uint8Array};
use kivu::{Error, pipeline::embedding::vectors::StoredVector};
use kivu_bindings::{Joined, Task, describe, run};
use wasm_bindgen::prelude::*;

use crate::{failure::Failure, texts::inputs};

/// A model whose files arrive in pieces.
#[wasm_bindgen]
pub struct IncomingModel(kivu::model::IncomingModel);

#[wasm_bindgen]
impl IncomingModel {
    /// A model without its files, with memory for them.
    #[wasm_bindgen(constructor)]
    pub fn new(manifest: &str) -> Result<Self, JsValue> {
        Ok(Self(
            kivu::model::IncomingModel::new(manifest).map_err(Failure::from)?,
        ))
    }

    /// The files to fill: names with their BLAKE3 in hexadecimal, one after another.
    pub fn required(&self) -> Vec<String> {
        self.0
            .required()
            .flat_map(|file| [file.name.clone(), file.blake3.clone()])
            .collect()
    }

    /// Copies the next piece of a file.
    pub fn fill(&mut self, name: &str, piece: &Uint8Array) -> Result<(), JsValue> {
        let copy = |free: &mut [u8]| piece.subarray(0, free.len() as u32).copy_to(free);
        Ok(self
            .0
            .fill(name, piece.length() as usize, copy)
            .map_err(Failure::from)?)
    }

    /// Opens the model, whose files have arrived.
    pub fn open(self) -> Result<Model, JsValue> {
        Ok(self.0.open().map(Model).map_err(Failure::from)?)
    }
}

/// A model in this instance.
#[wasm_bindgen]
pub struct Model(kivu::Model);

#[wasm_bindgen]
impl Model {
    /// The model's name, task, limits and vectors, as JSON.
    pub fn description(&self) -> Result<String, JsValue> {
        Ok(describe(&self.0).map_err(Failure::from)?)
    }

    /// Runs a task on a batch of inputs, whose first one has the position `first`. Returns JSON, or an object with vectors
    /// of one format, as `values` one after another, and how many each text has, `counts`.
    pub fn run(
        &self,
        task: &str,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<JsValue, JsValue> {
        let joined = now(async {
            let task: Task = task.parse()?;
            let inputs = inputs(task, values, first)?;
            run(&self.0, task, inputs, parameters).await?.joined()
        })?;
        let (values, counts) = match joined {
            Joined::Vectors { values, counts } => (values, counts),
            Joined::Json(json) => return Ok(json.into()),
        };
        let values: JsValue = match values {
            StoredVector::Float(values) => Float32Array::from(&values[..]).into(),
            StoredVector::Int8(values) => Int8Array::from(&values[..]).into(),
            StoredVector::Uint8(values) => Uint8Array::from(&values[..]).into(),
        };
        let counts: Array = counts.into_iter().map(JsValue::from).collect();
        let found = Object::new();
        Reflect::set(&found, &"values".into(), &values)?;
        Reflect::set(&found, &"counts".into(), &counts)?;
        Ok(found.into())
    }
}

/// The result of work, which waits for nothing: there is one thread, and no clock.
fn now<T>(work: impl Future<Output = kivu::Result<T>>) -> Result<T, JsValue> {
    let waits = || {
        Err(Error::inference(
            "expected the model to run at once, but it waits",
        ))
    };
    Ok(work
        .now_or_never()
        .unwrap_or_else(waits)
        .map_err(Failure::from)?)
}
