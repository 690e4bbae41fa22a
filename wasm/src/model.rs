//! The class `Model`, with the methods of the native module for Node.js.

use std::future::Future;

use futures::FutureExt;
use js_sys::{Array, Float32Array, Int8Array, Uint8Array};
use kivu::{Error, pipeline::embedding::vectors::StoredVector};
use kivu_bindings::{
    TokenVectors, classify, describe, encode, entities, extract, generate, joined, multi_vectors,
    rank, sparse, to_json, tokenize, translate, zero_shot,
};
use wasm_bindgen::prelude::*;

use crate::{
    failure::Failure,
    texts::{inputs, text, texts},
};

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

/// Vectors per token, one after another.
#[wasm_bindgen(js_name = TokenVectors, getter_with_clone)]
pub struct JoinedVectors {
    /// The vectors.
    pub values: Float32Array,
    /// How many vectors each text has.
    pub counts: Vec<u32>,
    /// How many values each vector has.
    pub width: u32,
}

#[wasm_bindgen]
impl Model {
    /// The model's name, task, limits and vectors, as JSON.
    pub fn description(&self) -> Result<String, JsValue> {
        Ok(describe(&self.0).map_err(Failure::from)?)
    }

    /// Dense vectors one after another, in an array of their number format.
    pub fn encode(&self, values: &Array, first: u32, parameters: &str) -> Result<JsValue, JsValue> {
        let vectors = now(async {
            Ok(joined(
                encode(&self.0, parameters, texts(values, "texts", first)?).await?,
            ))
        })?;
        Ok(match vectors {
            StoredVector::Float(values) => Float32Array::from(&values[..]).into(),
            StoredVector::Int8(values) => Int8Array::from(&values[..]).into(),
            StoredVector::Uint8(values) => Uint8Array::from(&values[..]).into(),
        })
    }

    /// Vectors per token.
    #[wasm_bindgen(js_name = multiVectors)]
    pub fn multi_vectors(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<JoinedVectors, JsValue> {
        let vectors = now(async {
            let vectors =
                multi_vectors(&self.0, parameters, texts(values, "texts", first)?).await?;
            Ok(TokenVectors::new(vectors))
        })?;
        let TokenVectors {
            values,
            counts,
            width,
        } = vectors;
        Ok(JoinedVectors {
            values: Float32Array::from(&values[..]),
            counts,
            width,
        })
    }

    /// For each text a list with pairs of a token id or word, and its weight, as JSON.
    pub fn sparse(&self, values: &Array, first: u32, parameters: &str) -> Result<String, JsValue> {
        now(async { to_json(&sparse(&self.0, parameters, texts(values, "texts", first)?).await?) })
    }

    /// Labels with scores for each text or pair, as JSON.
    pub fn classify(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<String, JsValue> {
        now(async { classify(&self.0, parameters, inputs(values, first)?).await })
    }

    /// The requested labels with scores for each text, as JSON.
    #[wasm_bindgen(js_name = zeroShot)]
    pub fn zero_shot(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<String, JsValue> {
        now(async { zero_shot(&self.0, parameters, texts(values, "texts", first)?).await })
    }

    /// Entities for each text, as JSON. With labels, the model must take labels.
    pub fn entities(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<String, JsValue> {
        now(async { entities(&self.0, parameters, texts(values, "texts", first)?).await })
    }

    /// Values by the names in a schema for each text, as JSON.
    pub fn extract(&self, values: &Array, first: u32, parameters: &str) -> Result<String, JsValue> {
        now(async { extract(&self.0, parameters, texts(values, "texts", first)?).await })
    }

    /// Indexes with scores, the highest first, as JSON.
    pub fn rank(
        &self,
        query: &JsValue,
        documents: &Array,
        parameters: &str,
    ) -> Result<String, JsValue> {
        now(async {
            let query = text(query, || "query".to_owned())?;
            rank(
                &self.0,
                parameters,
                query,
                texts(documents, "documents", 0)?,
            )
            .await
        })
    }

    /// The error that no such model is opened.
    pub fn translate(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<Vec<String>, JsValue> {
        now(async { translate(&self.0, parameters, texts(values, "texts", first)?).await })
    }

    /// The error that no such model is opened.
    pub fn generate(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<Vec<String>, JsValue> {
        now(async { generate(&self.0, parameters, texts(values, "texts", first)?).await })
    }

    /// Each text's tokens, as JSON.
    pub fn tokenize(
        &self,
        values: &Array,
        first: u32,
        parameters: &str,
    ) -> Result<String, JsValue> {
        now(async { tokenize(&self.0, parameters, texts(values, "texts", first)?).await })
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
