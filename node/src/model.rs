//! The class `Model`.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use kivu::pipeline::embedding::vectors::StoredVector;
use kivu_bindings::{
    Source, classify, describe, encode, entities, extract, generate, joined, multi_vectors,
    on_thread, rank, sparse, to_json, tokenize, translate, zero_shot,
};
use napi::{
    Either, Env, JsString,
    bindgen_prelude::{ClassInstance, Either3, Float32Array, Int8Array, Object, Uint8Array},
};
use napi_derive::napi;

use crate::{
    call::{Cancellation, in_background, promise},
    failure::Failure,
    texts::{Inputs, Text, Texts},
};

/// Dense vectors one after another.
type Vectors = Either3<Float32Array, Int8Array, Uint8Array>;
type Cancelled<'env> = Option<ClassInstance<'env, Cancellation>>;

/// A model in this process.
#[napi]
pub struct Model {
    source: Source,
    /// `None` once it is closed.
    opened: Mutex<Option<Arc<kivu::Model>>>,
}

/// Vectors per token.
#[napi(object)]
pub struct TokenVectors {
    /// The vectors one after another.
    pub values: Float32Array,
    /// How many vectors each text has.
    pub counts: Vec<u32>,
    /// How many values each vector has.
    pub width: u32,
}

/// Loads a model by name; the options are JSON.
#[napi]
pub fn load<'env>(
    env: &'env Env,
    name: String,
    options: String,
    cancellation: Cancelled<'_>,
) -> napi::Result<Object<'env>> {
    let work = async move {
        let source = Source::new(name, &options)?;
        let loading = source.clone();
        let model = on_thread(move || loading.load(kivu_aws::cloud)).await?;
        Ok((source, model))
    };
    promise(env, cancellation, work, |(source, model)| Model {
        source,
        opened: Mutex::new(Some(Arc::new(model))),
    })
}

#[napi]
impl Model {
    /// The model's name, task, limits and vectors, as JSON.
    #[napi]
    pub fn description(&self, env: Env) -> napi::Result<String> {
        let described = self.model().and_then(|model| Ok(describe(&model)?));
        described.map_err(|failure| failure.into_error(env))
    }

    /// Dense vectors one after another.
    #[napi]
    pub fn encode<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work = self.run(|model| async move {
            Ok(joined(encode(&model, &parameters, texts.texts()?).await?))
        });
        promise(env, cancellation, work, |vectors| -> Vectors {
            match vectors {
                StoredVector::Float(values) => Either3::A(values.into()),
                StoredVector::Int8(values) => Either3::B(values.into()),
                StoredVector::Uint8(values) => Either3::C(values.into()),
            }
        })
    }

    /// Vectors per token.
    #[napi]
    pub fn multi_vectors<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work = self.run(|model| async move {
            Ok(kivu_bindings::TokenVectors::new(
                multi_vectors(&model, &parameters, texts.texts()?).await?,
            ))
        });
        promise(env, cancellation, work, |found| TokenVectors {
            values: found.values.into(),
            counts: found.counts,
            width: found.width,
        })
    }

    /// For each text a list with pairs of a token id or word, and its weight, as JSON.
    #[napi]
    pub fn sparse<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work = self.run(|model| async move {
            to_json(&sparse(&model, &parameters, texts.texts()?).await?)
        });
        promise(env, cancellation, work, |json| json)
    }

    /// Labels with scores for each text or pair, as JSON.
    #[napi]
    pub fn classify<'env>(
        &self,
        env: &'env Env,
        texts: Vec<Either<JsString<'_>, Vec<JsString<'_>>>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let inputs = Inputs::copy(texts, first)?;
        let work =
            self.run(|model| async move { classify(&model, &parameters, inputs.inputs()?).await });
        promise(env, cancellation, work, |json| json)
    }

    /// The requested labels with scores for each text, as JSON.
    #[napi]
    pub fn zero_shot<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { zero_shot(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |json| json)
    }

    /// Entities for each text, as JSON. With labels, the model must take labels.
    #[napi]
    pub fn entities<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { entities(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |json| json)
    }

    /// Values by the names in a schema for each text, as JSON.
    #[napi]
    pub fn extract<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { extract(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |json| json)
    }

    /// Indexes with scores, the highest first, as JSON.
    #[napi]
    pub fn rank<'env>(
        &self,
        env: &'env Env,
        query: JsString<'_>,
        documents: Vec<JsString<'_>>,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let query = Text::copy(query, "query")?;
        let documents = Texts::copy(documents, "documents", 0)?;
        let work = self.run(|model| async move {
            rank(&model, &parameters, query.text()?, documents.texts()?).await
        });
        promise(env, cancellation, work, |json| json)
    }

    /// A translation for each text.
    #[napi]
    pub fn translate<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { translate(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |texts| texts)
    }

    /// A generated text for each text.
    #[napi]
    pub fn generate<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { generate(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |texts| texts)
    }

    /// Each text's tokens, as JSON.
    #[napi]
    pub fn tokenize<'env>(
        &self,
        env: &'env Env,
        texts: Vec<JsString<'_>>,
        first: u32,
        parameters: String,
        cancellation: Cancelled<'_>,
    ) -> napi::Result<Object<'env>> {
        let texts = Texts::copy(texts, "texts", first)?;
        let work =
            self.run(|model| async move { tokenize(&model, &parameters, texts.texts()?).await });
        promise(env, cancellation, work, |json| json)
    }

    /// Frees the model once its calls end.
    #[napi]
    pub fn close(&self) {
        let opened = self
            .opened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(model) = opened {
            in_background(move || drop(model));
        }
    }
}

impl Model {
    fn model(&self) -> Result<Arc<kivu::Model>, Failure> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.clone().ok_or_else(|| {
            let name = self.source.name();
            Failure::new(
                "ClosedError",
                format!("expected an open model, but `{name}` is closed; load it again"),
            )
        })
    }

    /// Work with the model, or the error that it is closed.
    fn run<T, W, F>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W, F>
    where
        T: 'static,
        W: Future<Output = kivu::Result<T>> + Send + 'static,
        F: FnOnce(Arc<kivu::Model>) -> W + 'static,
    {
        let work = self.model().map(work);
        async move { Ok(work?.await?) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.close();
    }
}
