//! A method of [`Model`] per task, for programs.

use super::{
    Scope,
    classification::{
        ClassificationParameters, Classifier, ZeroShotClassifier, ZeroShotParameters,
    },
    embedding::{Embedder, EmbeddingParameters, TokenEmbedder},
    entities::{EntityFinder, TokenClassificationParameters, ZeroShotEntitiesParameters},
    extraction::{ExtractionParameters, Extractor},
    ranking::{Ranker, RankingParameters},
    text_to_text::{TextGenerator, TextToTextParameters},
    tokens::{TokenParameters, TokenReader},
};
use crate::model::{Model, Pipeline};
use kivu_base::{Error, Result};
use kivu_core::pipeline::{
    Task, classification::ranking::RankingPipeline, embedding::EmbeddingPipeline,
};

/// Each of these methods fails if the model is for another task, or if the parameters do not fit the model.
impl Model {
    /// Vectors, for the task `feature-extraction`.
    pub fn embedder(&self, parameters: &EmbeddingParameters) -> Result<Embedder> {
        parameters.prepare(self.embedding(parameters)?, &self.scope())
    }

    /// Vectors per token, for the task `feature-extraction`.
    pub fn token_embedder(&self, parameters: &EmbeddingParameters) -> Result<TokenEmbedder> {
        parameters.prepare_tokens(self.embedding(parameters)?, &self.scope())
    }

    /// The embedding model, with the prompt that these parameters name.
    fn embedding(&self, parameters: &EmbeddingParameters) -> Result<&EmbeddingPipeline> {
        let pipeline = self.pipeline.embedding();
        let pipeline = pipeline.ok_or_else(|| self.is_not_for(Task::FeatureExtraction))?;
        pipeline.prompt(parameters.prompt_name.as_deref())?;
        Ok(pipeline)
    }

    /// Scores for the model's labels, for the task `text-classification`.
    pub fn classifier(&self, parameters: &ClassificationParameters) -> Result<Classifier> {
        match &self.pipeline {
            Pipeline::Classification(pipeline) => parameters.prepare(pipeline, &self.scope()),
            _ => Err(self.is_not_for(Task::TextClassification)),
        }
    }

    /// Scores for the labels in the parameters, for the task `zero-shot-classification`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(model: kivu::Model) -> kivu::Result<()> {
    /// use kivu::{Deadline, task::{classification::ZeroShotParameters, read_parameters}};
    /// use serde_json::{Map, json};
    ///
    /// let parameters = Map::from_iter([("candidate_labels".to_owned(), json!(["bug", "billing"]))]);
    /// let parameters: ZeroShotParameters = read_parameters(parameters)?;
    /// let classifier = model.zero_shot_classifier(&parameters)?;
    /// let scores = classifier.run(&["The app crashes.".to_owned()], Deadline::none()).await?;
    /// println!("{:?} {:?}", classifier.labels(), scores.rows[0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn zero_shot_classifier(
        &self,
        parameters: &ZeroShotParameters,
    ) -> Result<ZeroShotClassifier> {
        match &self.pipeline {
            Pipeline::ZeroShot(pipeline) => parameters.prepare(pipeline, &self.scope()),
            _ => Err(self.is_not_for(Task::ZeroShotClassification)),
        }
    }

    /// Entities with the model's labels, for the task `token-classification`.
    pub fn entity_finder(
        &self,
        parameters: &TokenClassificationParameters,
    ) -> Result<EntityFinder> {
        match &self.pipeline {
            Pipeline::TokenClassification(pipeline) => {
                // Labels that are left out have no cost, so their number is not limited.
                parameters.prepare(
                    pipeline,
                    &Scope {
                        max_labels: usize::MAX,
                        ..self.scope()
                    },
                )
            }
            Pipeline::ZeroShotEntities(_) => Err(Error::invalid(format!(
                "expected `labels` for `{}`, which finds entities with labels that you choose, but found none",
                self.name
            ))),
            _ => Err(self.is_not_for(Task::TokenClassification)),
        }
    }

    /// Entities with the labels in the parameters, for the task `token-classification`.
    pub fn labelled_entity_finder(
        &self,
        parameters: &ZeroShotEntitiesParameters,
    ) -> Result<EntityFinder> {
        match &self.pipeline {
            Pipeline::ZeroShotEntities(pipeline) => parameters.prepare(pipeline, &self.scope()),
            Pipeline::TokenClassification(_) => Err(Error::invalid(format!(
                "`labels` is not supported: `{}` has labels of its own",
                self.name
            ))
            .with_hint("omit them")),
            _ => Err(self.is_not_for(Task::TokenClassification)),
        }
    }

    /// Structures, relations, entities and labels by a schema, for the task `token-classification`.
    pub fn extractor(&self, parameters: &ExtractionParameters) -> Result<Extractor> {
        match &self.pipeline {
            Pipeline::ZeroShotEntities(pipeline) => parameters.prepare(pipeline, &self.scope()),
            Pipeline::TokenClassification(_) => Err(Error::invalid(format!(
                "`schema` is not supported: `{}` has labels of its own",
                self.name
            ))),
            _ => Err(self.is_not_for(Task::TokenClassification)),
        }
    }

    /// Relevance scores, for the task `text-ranking`. Embedding models rank, too: by multi-vectors or by cosine.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(model: kivu::Model) -> kivu::Result<()> {
    /// use kivu::{Deadline, task::ranking::RankingParameters};
    ///
    /// let ranker = model.ranker(&RankingParameters::default())?;
    /// let texts = vec!["A hen lays eggs.".to_owned(), "A car has wheels.".to_owned()];
    /// let (scores, _) = ranker.run("egg".to_owned(), texts, Deadline::none()).await?;
    /// println!("{scores:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn ranker(&self, parameters: &RankingParameters) -> Result<Ranker> {
        match &self.pipeline {
            Pipeline::Ranking(pipeline) => parameters.prepare(pipeline, &self.scope()),
            Pipeline::Embedding(pipeline) => {
                parameters.prepare(&RankingPipeline::Embedding(pipeline.clone()), &self.scope())
            }
            _ => Err(self.is_not_for(Task::TextRanking)),
        }
    }

    /// Translations, for the task `translation`.
    pub fn translator(&self, parameters: TextToTextParameters) -> Result<TextGenerator> {
        match &self.pipeline {
            Pipeline::Translation(pipeline) => {
                pipeline.check_languages(parameters.languages())?;
                Ok(parameters.prepare(pipeline, &self.sentences()))
            }
            _ => Err(self.is_not_for(Task::Translation)),
        }
    }

    /// Summaries and other texts, for the tasks `summarization` and `text2text-generation`.
    pub fn text_generator(&self, parameters: TextToTextParameters) -> Result<TextGenerator> {
        match &self.pipeline {
            Pipeline::TextToText(pipeline) => Ok(parameters.prepare(pipeline, &self.sentences())),
            _ => Err(self.is_not_for(Task::Summarization)),
        }
    }

    /// Tokens, for all tasks.
    pub fn token_reader(&self, parameters: TokenParameters) -> Result<TokenReader> {
        parameters.prepare(self)
    }

    fn scope(&self) -> Scope {
        Scope {
            truncate: self.settings.truncate,
            ..Scope::OF_TEXTS
        }
    }

    /// For texts with any number of sentences, which run one after another.
    fn sentences(&self) -> Scope {
        Scope {
            max_parts: usize::MAX,
            ..self.scope()
        }
    }

    fn is_not_for(&self, task: Task) -> Error {
        Self::wrong_task(&self.name, self.manifest.task, task)
    }
}
