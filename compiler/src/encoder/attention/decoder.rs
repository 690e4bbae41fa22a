//! Heads for decoder families, which read the last token's vector: label scores, and `yes` and `no` logits.

use super::pair_templates::KnownTemplate;
use crate::encoder::{
    config::{EncoderConfig, HeadKind, Span},
    heads::{logit_matrix, tie_words},
};
use crate::{
    files::{config::ConfigFile, module_list::has_pooling, weights::Weights},
    model_types::Family,
    plan::{Plan, model_card::pipeline_tag},
    sentence_transformers::{default_prompt, logit_score, max_tokens, modules::Modules},
    tokenizers::tokenizer_config::names_special_token,
};
use kivu::{
    Error, Result,
    pipeline::{
        Task,
        classification::{
            ClassificationSettings, pair_template::PairTemplate, scores::ScoreFunction,
        },
    },
    tokenizer::Tokenizer,
};

/// Qwen3-Reranker's class, and its `model_type`.
const QWEN3: [&str; 2] = ["Qwen3ForCausalLM", "qwen3"];

/// Weight of the output matrix.
const OUTPUT_MATRIX: &str = "lm_head.weight";

/// Class name suffix for text generators.
const GENERATOR: &str = "ForCausalLM";

/// Default instruction by Qwen3-Reranker's authors.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// Parts of Qwen3-Reranker's template on single lines.
const PARTS: [&str; 7] = [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided",
    "Note that the answer can only be",
    INSTRUCTION,
    "<Instruct>: ",
    "<Query>: ",
    "<Document>: ",
    "<think>",
];

/// Builds a decoder's scores as output `output`, if it has a head or ranks by two tokens' logits. Removes `config`'s
/// head, since the modules contain it.
pub fn head(
    plan: &Plan,
    config: &mut EncoderConfig,
    weights: &mut Weights,
    tokenizer: &[u8],
    output: &'static str,
) -> Result<Option<(ClassificationSettings, Modules)>> {
    if !config.names.has_decoder_head() {
        return Ok(None);
    }
    let hidden = config.encoder_limits.hidden;
    let file = ConfigFile::open(&plan.transformer()?)?;
    let settings =
        |labels, function, known: Option<&KnownTemplate>| -> Result<ClassificationSettings> {
            let max_tokens = max_tokens(&plan.folder, &config.encoder_limits)?;
            let (output, query_prompt) = (output.to_owned(), None);
            Ok(ClassificationSettings {
                output,
                labels,
                function,
                max_tokens,
                template: known.map(|known| known.template.clone()),
                query_prompt,
                padding: None,
                identifies_languages: false,
            })
        };
    if config
        .head
        .as_ref()
        .is_some_and(|head| head.kind == HeadKind::Tokens)
    {
        return Ok(None);
    }
    if let Some(head) = &config.head {
        let scores = weights.take_whole(
            &format!("{}.weight", config.names.labels),
            &[head.labels.len(), hidden],
        )?;
        let known = match head.labels.len() {
            1 => KnownTemplate::of(plan, &file)?,
            _ => None,
        };
        if let Some(known) = known {
            check_parts(known, tokenizer)?;
        }
        let mut settings = settings(head.labels.clone(), head.function, known)?;
        settings.query_prompt = default_prompt(&plan.folder)?;
        settings.padding = padding(&file)?;
        check_padding(config, tokenizer, settings.padding)?;
        config.head = None;
        return Ok(Some((
            settings,
            Modules::of_last_token(hidden, scores.values.clone(), output),
        )));
    }
    let Some((known, yes, no)) = tokens(plan, config, &file, weights, tokenizer)? else {
        return Ok(None);
    };
    tie_words(config, weights, OUTPUT_MATRIX)?;
    let matrix = logit_matrix(config, weights, OUTPUT_MATRIX)?;
    let row = |token: u32| {
        let missing = || {
            Error::model(format!(
                "expected the token {token} among the {} of the model",
                config.vocabulary
            ))
        };
        let mut rows = matrix.values.chunks_exact(hidden);
        rows.nth(token as usize).ok_or_else(missing)
    };
    // The difference's sigmoid is the probability of the first token among the two.
    let mut score = row(yes)?.to_vec();
    if let Some(no) = no {
        for (value, other) in score.iter_mut().zip(row(no)?) {
            *value -= other;
        }
    }
    if let Some(prompt) = default_prompt(&plan.folder)?.filter(|prompt| prompt != INSTRUCTION) {
        return Err(Error::model(format!(
            "expected the default prompt `{INSTRUCTION}` of Qwen3-Reranker, or none, but found `{prompt}`"
        )));
    }
    let settings = settings(
        vec!["LABEL_0".to_owned()],
        ScoreFunction::Sigmoid,
        Some(known),
    )?;
    Ok(Some((
        settings,
        Modules::of_last_token(hidden, score, output),
    )))
}

/// Refuses a tokenizer that gives the parts of a template other tokens than the whole, which a label head reads.
fn check_parts(known: &KnownTemplate, tokenizer: &[u8]) -> Result<()> {
    let PairTemplate {
        prefix,
        first,
        suffix,
        ..
    } = &known.template;
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    let (parts, mut joined) = ([prefix, first, suffix].map(String::as_str), Vec::new());
    for part in parts {
        joined.extend(tokenizer.ids(part)?);
    }
    match tokenizer.ids(&parts.concat())? == joined {
        true => Ok(()),
        false => Err(Error::model(format!(
            "expected a tokenizer that splits texts between the parts of the template `{}`, but found another",
            known.name
        ))),
    }
}

/// The token that is dropped at the end of texts. Only Gemma's classes have one by default.
fn padding(config: &ConfigFile) -> Result<Option<u32>> {
    const KEY: &str = "pad_token_id";
    let is_default = config.model_type().starts_with("gemma") && !config.fields().contains_key(KEY);
    Ok(config.get(KEY)?.or(is_default.then_some(0)))
}

/// Refuses a padding token at the end of all texts if others attend to it, since it is dropped.
fn check_padding(config: &EncoderConfig, tokenizer: &[u8], padding: Option<u32>) -> Result<()> {
    let attends_later = |span: &Span| span.window.after != Some(0);
    let Some(padding) = padding.filter(|_| config.spans.iter().any(attends_later)) else {
        return Ok(());
    };
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    match tokenizer.special_ids()[1].last() == Some(&padding) {
        true => Err(Error::model(format!(
            "expected a `pad_token_id` other than {padding}, with which all texts end, in a model that attends to later tokens"
        ))),
        false => Ok(()),
    }
}

/// Refuses a limit for logits, which Gemma 2's class has by default: the score is the difference of two logits.
fn check_logits(config: &ConfigFile) -> Result<()> {
    const CAP: &str = "final_logit_softcapping";
    let is_default = config.model_type() == "gemma2" && !config.fields().contains_key(CAP);
    match config.get::<f64>(CAP)?.or(is_default.then_some(30.0)) {
        None => Ok(()),
        Some(found) => Err(Error::model(format!(
            "`{CAP}` {found} is not supported in a model that ranks by two tokens' logits"
        ))),
    }
}

/// What a model ranks by, if it does: a template, the token whose logit is the score, and one whose logit is subtracted.
type Answer = (&'static KnownTemplate, u32, Option<u32>);

fn tokens(
    plan: &Plan,
    config: &EncoderConfig,
    file: &ConfigFile,
    weights: &Weights,
    tokenizer: &[u8],
) -> Result<Option<Answer>> {
    if let Some([yes, no]) = logit_score(&plan.folder, &PARTS)? {
        check_logits(file)?;
        return Ok(Some((KnownTemplate::qwen3_reranker()?, yes, Some(no))));
    }
    let architecture = &config.encoder_limits.architecture;
    // Without a class, it is the model type. A generator's body has a prefix.
    let is_unnamed = Family::named(architecture).is_some()
        && !weights.prefix.is_empty()
        && config.names.label_weight(weights).is_none();
    if has_pooling(&plan.folder) || !architecture.ends_with(GENERATOR) && !is_unnamed {
        return Ok(None);
    }
    let asks_for_ranking =
        plan.task.or_else(|| pipeline_tag(&plan.folder)) == Some(Task::TextRanking);
    let known = match KnownTemplate::of(plan, file)? {
        Some(known) if matches!(plan.task, None | Some(Task::TextRanking)) => known,
        None if asks_for_ranking && QWEN3.contains(&architecture.as_str()) => {
            KnownTemplate::qwen3_reranker()?
        }
        None if asks_for_ranking => {
            return Err(Error::model(format!(
                "expected a ranker with a known template, or a CrossEncoder of sentence-transformers with a `LogitScore` \
                 module, but found `{architecture}` alone: its files do not contain the text around a query and a \
                 document, nor which tokens are compared"
            ))
            .with_hint(format!(
                "if it was trained with one of these, name it as `template` in a recipe: {}",
                KnownTemplate::names()
            )));
        }
        _ => {
            return Err(Error::model(format!(
                "expected an embedding model with `modules.json`, or a model that ranks, but found \
                 `{architecture}` without `modules.json`"
            ))
            .with_hint(format!(
                "if it is a ranker with one of these templates, name it as `template` in a recipe: {}; a Qwen3-Reranker \
                 needs only `--task text-ranking`",
                KnownTemplate::names()
            )));
        }
    };
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    let token = |word: &str| match tokenizer.ids(word)?[..] {
        [token] => Ok(token),
        _ => Err(Error::model(format!(
            "expected `{word}` to be a single token, but found several"
        ))),
    };
    if let Some(begin) = &known.begin {
        token(begin)?;
        let names = |key| names_special_token(&plan.transformer()?, key, begin);
        if !names("bos_token")? || names("pad_token")? {
            return Err(Error::model(format!(
                "expected `{begin}` as `bos_token`, and another `pad_token`, for the template `{}`, but found others",
                known.name
            )));
        }
    }
    let (better, other) = &known.tokens;
    let other = other.as_deref().map(token).transpose()?;
    Ok(Some((known, token(better)?, other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_the_template() {
        let PairTemplate {
            prefix,
            first,
            second,
            suffix,
            ..
        } = &KnownTemplate::qwen3_reranker().unwrap().template;
        let template = format!("{prefix}{first}{second}{suffix}");
        assert!(PARTS.iter().all(|part| template.contains(part)));
        assert_eq!(KnownTemplate::names().matches(',').count(), 2);
    }
}
