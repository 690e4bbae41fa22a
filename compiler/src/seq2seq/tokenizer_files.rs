//! Text generators' tokenizers, and the languages named by their files.

use std::collections::BTreeMap;

use super::{
    tokenizer_json::{check_pieces, ids, is_unigram, with_template},
    tokenizer_settings::{
        CONFIG, Config, END, NumberedToken, VOCABULARY, added_tokens, contradiction,
    },
};
use crate::{
    files::{
        io::{read_if_exists, read_json, read_json_if_exists},
        model_folder::ModelFolder,
    },
    tokenizers::{
        byte_pairs,
        sentencepiece::{BuiltTokenizer, SentencePieces, Vocabulary},
        tokenizer_config::ADDED_FILE,
    },
};
use kivu::{
    Error, Result,
    pipeline::{
        Task,
        seq2seq::{Languages, TargetToken, TokenSide},
    },
    repository::bundle::TOKENIZER,
};

const PIECES: &str = "sentencepiece.bpe.model";
/// T5's and Pegasus' SentencePiece model.
const OWN_PIECES: &str = "spiece.model";
/// The end token's id in families with shifted ids.
const END_ID: i64 = 2;
/// mBART-50's languages; their tokens follow the pieces in this order. mBART has a prefix of this list.
const MBART_LANGUAGES: &str = include_str!("languages/mbart.txt");
const FIRST_MBART_LANGUAGES: usize = 25;
/// Default language for mBART texts.
const MBART_LANGUAGE: &str = "en_XX";

/// A model's tokenizers.
pub struct Tokenizers {
    pub source: BuiltTokenizer,
    /// Target `tokenizer.json`, if different.
    pub target: Option<Vec<u8>>,
    /// The token that a translator's tokenizer adds to sources, if its files name it.
    pub end: Option<i64>,
    /// None if the files do not name them.
    pub languages: Option<Languages>,
    /// Maximum number of tokens per text, if the files set one.
    pub max_tokens: Option<usize>,
}

/// M2M100's or NLLB's tokenizer in `folder`, for a model with `size` ids.
pub fn many_to_many(folder: &ModelFolder, size: usize) -> Result<Tokenizers> {
    let config = Config::open_multilingual(folder)?;
    let ids: Option<BTreeMap<String, u32>> = read_json_if_exists(&folder.join(VOCABULARY))?;
    let is_m2m100 = ids.is_some();
    let (source, tokens) = with_tokens(folder, |pieces| match ids {
        Some(ids) => config.m2m100_vocabulary(ids, size),
        None => config.shifted_vocabulary(pieces, config.tokens(BTreeMap::new())?, size),
    })?;
    let code = |token: &str| match is_m2m100 {
        true => token
            .strip_prefix("__")?
            .strip_suffix("__")
            .map(str::to_owned),
        // Three letters for the language, four for the script: `por_Latn`.
        false => (token.len() == 8 && token.find('_') == Some(3)).then(|| token.to_owned()),
    };
    let codes: BTreeMap<String, i64> = tokens
        .iter()
        .filter_map(|(token, id)| Some((code(token)?, i64::from(*id))))
        .collect();
    if codes.is_empty() {
        return Err(Error::model(format!(
            "expected language tokens with their ids in `{}` (`{TOKENIZER}`, `{ADDED_FILE}`, or \
             `added_tokens_decoder` of `{CONFIG}`), but found none",
            folder.display()
        ))
        .with_hint("save the tokenizer again with `save_pretrained`"));
    }
    config.check_special(tokens.keys().filter(|token| code(token).is_some()))?;
    let side = if config.legacy_behaviour {
        TokenSide::After
    } else {
        TokenSide::Before
    };
    let languages = Some(Languages::Tokens {
        codes,
        side,
        target: TargetToken::First,
    });
    let end = config.end(&tokens)?;
    Ok(Tokenizers {
        source,
        target: None,
        end,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// mBART's or mBART-50's tokenizer in `folder`, for a model with `size` ids. `class` is the tokenizer class in
/// `config.json`, if any. For other tasks than translation, it reads texts in its files' language.
pub fn mbart(
    folder: &ModelFolder,
    class: Option<&str>,
    size: usize,
    task: Task,
) -> Result<Tokenizers> {
    let config = Config::open_multilingual(folder)?;
    let class = config.tokenizer_class.as_deref().or(class);
    let is_mbart50 = class.is_some_and(|class| class.starts_with("MBart50"));
    let all: Vec<_> = MBART_LANGUAGES.split_whitespace().collect();
    let names = match is_mbart50 {
        true => &all[..],
        false => &all[..FIRST_MBART_LANGUAGES],
    };
    let translates = task == Task::Translation;
    let (mut source, tokens) = with_tokens(folder, |pieces| {
        config.mbart_vocabulary(pieces, size, names)
    })?;
    let end = config.end(&tokens)?;
    let tokens = tokens
        .into_iter()
        .filter(|(token, _)| all.contains(&token.as_str()));
    let codes: BTreeMap<String, i64> = tokens.map(|(token, id)| (token, i64::from(id))).collect();
    config.check_special(codes.keys())?;
    // The token positions that each model was trained with.
    let (side, target) = match is_mbart50 {
        true => (TokenSide::Before, TargetToken::First),
        false => (TokenSide::After, TargetToken::Start),
    };
    if !translates {
        let name = config.src_lang.as_deref().unwrap_or(MBART_LANGUAGE);
        let missing = || {
            Error::model(format!(
                "expected the token of the language `{name}`, but found none"
            ))
        };
        let language = (name, *codes.get(name).ok_or_else(missing)?);
        let end = (END, END_ID);
        source.json = match side {
            TokenSide::Before => with_template(&source.json, [&[language], &[end]]),
            TokenSide::After => with_template(&source.json, [&[], &[end, language]]),
        }?;
    }
    let languages = translates.then_some(Languages::Tokens {
        codes,
        side,
        target,
    });
    Ok(Tokenizers {
        source,
        target: None,
        end,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// A multilingual tokenizer in `folder`, its unsplittable tokens, and ids that the model lacks. It is built with the
/// vocabulary that `vocabulary` returns, unless there is only a `tokenizer.json`: that was converted from the
/// SentencePiece model, and treats some white space differently.
fn with_tokens(
    folder: &ModelFolder,
    vocabulary: impl FnOnce(&SentencePieces) -> Result<Vocabulary>,
) -> Result<(BuiltTokenizer, BTreeMap<String, u32>)> {
    let json = read_if_exists(&folder.join(TOKENIZER))?;
    if let Some(json) = &json {
        check_pieces(json)?;
    }
    if let Some(json) = json.as_ref().filter(|_| !folder.join(PIECES).is_file()) {
        let tokens = added_tokens(json)?.into_iter();
        let tokens = tokens.map(|NumberedToken { id, token }| (token.content, id));
        let built = BuiltTokenizer {
            json: json.clone(),
            unknown_tokens: None,
        };
        return Ok((built, tokens.collect()));
    }
    let pieces = SentencePieces::open(&folder.join(PIECES))?;
    let vocabulary = vocabulary(&pieces)?;
    let tokens = vocabulary
        .tokens
        .iter()
        .map(|(content, token)| (content.clone(), token.id));
    let tokens: BTreeMap<String, u32> = tokens.collect();
    if let Some(json) = json {
        for (token, id) in ids(&json)? {
            let own = tokens.get(&token).or(vocabulary.ids.get(&token));
            if let Some(own) = own.filter(|own| **own != id) {
                return Err(contradiction(
                    &token,
                    [*own, id],
                    "the SentencePiece model and the token list",
                ));
            }
        }
    }
    Ok((pieces.tokenizer(&vocabulary)?, tokens))
}

/// Marian's tokenizers in `folder`, for a model with the given source and target vocabulary sizes.
pub fn marian(folder: &ModelFolder, sizes: [usize; 2]) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    let source: BTreeMap<String, u32> = read_json(&folder.join(VOCABULARY))?;
    let targets: BTreeMap<String, i64> = source
        .iter()
        .filter_map(|(piece, id)| {
            let code = piece.strip_prefix(">>")?.strip_suffix("<<")?;
            Some((code.to_owned(), i64::from(*id)))
        })
        .collect();
    let languages = match (config.source_lang.clone(), config.target_lang.clone()) {
        (source, _) if !targets.is_empty() => Some(Languages::Prefix {
            source: source.unwrap_or_default(),
            targets,
        }),
        (Some(source), Some(target)) => Some(Languages::Pair { source, target }),
        _ => None,
    };
    let target = match config.separate_vocabs {
        true => read_json(&folder.join("target_vocab.json"))?,
        false => source.clone(),
    };
    let target = config.vocabulary(target, sizes[1])?.decoder()?;
    let end = config.end(&source)?;
    let source = config.vocabulary(source, sizes[0])?;
    let source = SentencePieces::open(&folder.join("source.spm"))?.tokenizer(&source)?;
    Ok(Tokenizers {
        source,
        target: Some(target),
        end,
        languages,
        max_tokens: config.max_tokens(),
    })
}

/// A tokenizer without languages in `folder`, for a model with `size` ids: its `tokenizer.json`, or else its
/// SentencePiece model.
pub fn monolingual(folder: &ModelFolder, size: usize) -> Result<Tokenizers> {
    let config = Config::open(folder)?;
    Ok(Tokenizers {
        source: own_tokenizer(folder, &config, size)?,
        target: None,
        end: None,
        languages: None,
        max_tokens: config.max_tokens(),
    })
}

/// T5's `tokenizer.json` in `folder`, for a model with `size` ids.
pub fn t5_tokenizer(folder: &ModelFolder, size: usize) -> Result<Vec<u8>> {
    let config = Config::open(folder)?;
    Ok(own_tokenizer(folder, &config, size)?.json)
}

/// Reads the tokenizer in `folder`, or converts its byte pairs or its SentencePiece model.
fn own_tokenizer(folder: &ModelFolder, config: &Config, size: usize) -> Result<BuiltTokenizer> {
    let pieces = folder.join(OWN_PIECES);
    if folder.join(TOKENIZER).is_file() || !pieces.is_file() {
        let json = byte_pairs::tokenizer(folder)?;
        if is_unigram(&json)? {
            check_pieces(&json)?;
        }
        return Ok(BuiltTokenizer {
            json,
            unknown_tokens: None,
        });
    }
    let pieces = SentencePieces::open(&pieces)?;
    let is_pegasus = config
        .tokenizer_class
        .as_deref()
        .is_some_and(|class| class.contains("Pegasus"));
    let vocabulary = match is_pegasus {
        true => config.pegasus_vocabulary(&pieces, size),
        false => config.t5_vocabulary(&pieces, size),
    }?;
    pieces.tokenizer(&vocabulary)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use kivu::tokenizer::{SpecialTokens, Tokenizer};
    use serde_json::Value;

    use super::*;
    use crate::tokenizers::token_rows::within_vocabulary_or_unknown;

    fn fixture(name: &str) -> ModelFolder {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
        ModelFolder::new(models.join(name))
    }

    #[test]
    fn translators_read_sources_with_the_tokenizer_s_end() {
        assert_eq!(
            many_to_many(&fixture("tiny-m2m100"), 0).unwrap().end,
            Some(2)
        );
        assert_eq!(
            mbart(&fixture("tiny-mbart"), None, 0, Task::Translation)
                .unwrap()
                .end,
            Some(2)
        );
        assert_eq!(
            marian(&fixture("tiny-marian"), [0, 0]).unwrap().end,
            Some(0)
        );
        let other = tempfile::tempdir().unwrap();
        for file in ["vocab.json", "source.spm"] {
            fs::copy(fixture("tiny-marian").join(file), other.path().join(file)).unwrap();
        }
        fs::write(other.path().join(CONFIG), r#"{"eos_token": "a"}"#).unwrap();
        let refusal = marian(&ModelFolder::new(other.path()), [0, 0])
            .err()
            .unwrap();
        insta::assert_snapshot!(refusal, @"expected `eos_token` `</s>` in `tokenizer_config.json`, but found `a`");
    }

    /// A copy of a fixture with a changed file.
    fn changed(name: &str, file: &str, from: &str, to: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let entries = fs::read_dir(fixture(name)).unwrap().map(Result::unwrap);
        for entry in entries.filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.contains(from), "{file}");
        fs::write(folder.path().join(file), text.replace(from, to)).unwrap();
        folder
    }

    #[test]
    fn tokens_that_texts_need_are_not_null() {
        let from = r#""pad_token": "<pad>""#;
        let folder = changed("tiny-mt5", CONFIG, from, r#""pad_token": null"#);
        let refusal = monolingual(&ModelFolder::new(folder.path()), 0)
            .err()
            .unwrap();
        insta::assert_snapshot!(refusal, @"expected a value of `pad_token` in `tokenizer_config.json`, but found null; remove the key");
    }

    #[test]
    fn sentencepiece_models_have_the_parts_of_a_conversion() {
        let pre_tokenizer = ("tokenizer.json", "\"Metaspace\"", "\"ByteLevel\"");
        let folder = changed(
            "tiny-sentence-t5",
            pre_tokenizer.0,
            pre_tokenizer.1,
            pre_tokenizer.2,
        );
        let refusal = t5_tokenizer(&ModelFolder::new(folder.path()), 0).unwrap_err();
        insta::assert_snapshot!(refusal, @"`pre_tokenizer` `ByteLevel` in `tokenizer.json` is not supported for a SentencePiece model; supported: `Metaspace`, `WhitespaceSplit`");
        assert!(t5_tokenizer(&fixture("tiny-sentence-t5"), 0).is_ok());
        // Read next to the SentencePiece model, too.
        let folder = changed(
            "tiny-nllb",
            "tokenizer.json",
            "\"Precompiled\"",
            "\"BertNormalizer\"",
        );
        let refusal = many_to_many(&ModelFolder::new(folder.path()), 0)
            .err()
            .unwrap()
            .to_string();
        assert!(refusal.starts_with("`normalizer` `"), "{refusal}");
    }

    /// Ids from the tokenizers of `transformers` 4.57, which call SentencePiece.
    #[test]
    fn texts_are_normalized_by_the_longest_keys_of_the_character_map() {
        let many = many_to_many(&fixture("tiny-m2m100"), 0).unwrap();
        let marian = marian(&fixture("tiny-marian"), [0; 2]).unwrap();
        let tokens = |json: &[u8], text| {
            let tokenizer = Tokenizer::from_json(json).unwrap();
            let tokens = tokenizer.tokens(text, SpecialTokens::LeftOut).unwrap();
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!(tokenizer.ids(text).unwrap(), ids, "{text:?}");
            tokens
                .into_iter()
                .map(|it| (it.id, it.span.unwrap()))
                .collect::<Vec<_>>()
        };
        let found = tokens(&many.source.json, "xK\u{301}.");
        assert_eq!(
            found,
            [
                (217, (0, 1)),
                (239, (0, 1)),
                (376, (1, 2)),
                (3, (2, 3)),
                (231, (3, 4))
            ]
        );
        let found = tokens(&marian.source.json, "e\u{301}\u{200d}h");
        assert_eq!(found, [(121, (0, 1)), (1, (0, 3)), (59, (3, 4))]);
    }

    /// Changes a JSON file in `folder`.
    fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
        let path = folder.join(file);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    fn without(folder: &Path, keys: &[&str]) {
        edit(folder, CONFIG, |config| {
            let fields = config.as_object_mut().unwrap();
            keys.iter().for_each(|key| drop(fields.remove(*key)));
        });
    }

    fn codes(tokenizers: Tokenizers) -> BTreeMap<String, i64> {
        match tokenizers.languages {
            Some(Languages::Tokens { codes, .. }) => codes,
            other => panic!("expected language tokens, but found {other:?}"),
        }
    }

    #[test]
    fn languages_have_the_ids_of_all_files() {
        const LISTS: [&str; 2] = ["added_tokens_decoder", "additional_special_tokens"];
        let copy = |name: &str| changed(name, CONFIG, "{", "{");
        let refusal = |read: Result<Tokenizers>| read.err().unwrap().to_string();
        let nllb = copy("tiny-nllb");
        let read = |folder: &Path| many_to_many(&ModelFolder::new(folder), 604);
        let expected = codes(read(nllb.path()).unwrap());
        assert_eq!(expected["eng_Latn"], 448);
        // Older files name the languages in `special_tokens_map.json`, and their ids in two others.
        without(nllb.path(), &LISTS);
        assert_eq!(codes(read(nllb.path()).unwrap()), expected);
        edit(nllb.path(), ADDED_FILE, |tokens| {
            tokens["eng_Latn"] = 447.into();
            tokens["ell_Grek"] = 448.into();
        });
        let mut refusals = vec![refusal(read(nllb.path()))];
        fs::remove_file(nllb.path().join("added_tokens.json")).unwrap();
        assert_eq!(codes(read(nllb.path()).unwrap()), expected);
        fs::remove_file(nllb.path().join(TOKENIZER)).unwrap();
        refusals
            .push(refusal(read(nllb.path())).replace(&*nllb.path().to_string_lossy(), "[folder]"));
        // A full list is compared with `tokenizer.json`, too.
        let listed = copy("tiny-nllb");
        edit(listed.path(), CONFIG, |config| {
            let list = config[LISTS[0]].as_object_mut().unwrap();
            let [eng, epo] = ["448", "449"].map(|id| list.remove(id).unwrap());
            list.extend([("449".to_owned(), eng), ("448".to_owned(), epo)]);
        });
        refusals.push(refusal(read(listed.path())));
        let pieces = copy("tiny-nllb");
        edit(pieces.path(), TOKENIZER, |tokenizer| {
            let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
            let piece = vocabulary
                .iter()
                .find(|(_, id)| **id == 400)
                .unwrap()
                .0
                .clone();
            vocabulary.insert(piece, 399.into());
        });
        refusals.push(refusal(read(pieces.path())));
        let m2m100 = copy("tiny-m2m100");
        let read = |folder: &Path| many_to_many(&ModelFolder::new(folder), 500);
        let expected = codes(read(m2m100.path()).unwrap());
        without(m2m100.path(), &LISTS);
        assert_eq!(codes(read(m2m100.path()).unwrap()), expected);
        // The class numbers its languages, whatever the order in the file.
        fs::remove_file(m2m100.path().join("added_tokens.json")).unwrap();
        edit(m2m100.path(), "special_tokens_map.json", |map| {
            map[LISTS[1]].as_array_mut().unwrap().reverse();
        });
        assert_eq!(codes(read(m2m100.path()).unwrap()), expected);
        fs::write(
            m2m100.path().join("added_tokens.json"),
            r#"{"__en__": 393}"#,
        )
        .unwrap();
        refusals.push(refusal(read(m2m100.path())));
        let mbart50 = copy("tiny-mbart50");
        edit(mbart50.path(), CONFIG, |config| {
            let list = config[LISTS[0]].as_object_mut().unwrap();
            let [arabic, czech] = ["281", "282"].map(|id| list.remove(id).unwrap());
            list.extend([("282".to_owned(), arabic), ("281".to_owned(), czech)]);
        });
        refusals.push(refusal(mbart(
            &ModelFolder::new(mbart50.path()),
            None,
            334,
            Task::Translation,
        )));
        insta::assert_snapshot!(refusals.join("\n"), @"
        the token `eng_Latn` has the id 447 by `added_tokens.json`, but 448 in another file of the tokenizer; save it again with `save_pretrained`
        expected language tokens with their ids in `[folder]` (`tokenizer.json`, `added_tokens.json`, or `added_tokens_decoder` of `tokenizer_config.json`), but found none; save the tokenizer again with `save_pretrained`
        the token `eng_Latn` has the id 449 by the SentencePiece model and the token list, but 448 in another file of the tokenizer; save it again with `save_pretrained`
        the token `车` has the id 400 by the SentencePiece model and the token list, but 399 in another file of the tokenizer; save it again with `save_pretrained`
        the token `__en__` has the id 410 by the number of pieces, but 393 in another file of the tokenizer; save it again with `save_pretrained`
        the token `ar_AR` has the id 281 by the number of pieces, but 282 in another file of the tokenizer; save it again with `save_pretrained`
        ");
    }

    #[test]
    fn null_settings_are_missing_ones() {
        type Read = fn(&ModelFolder) -> Result<Tokenizers>;
        let readers: [(&str, Read); 7] = [
            ("tiny-mt5", |folder| monolingual(folder, 0)),
            ("tiny-pegasus", |folder| monolingual(folder, 0)),
            ("tiny-t5", |folder| monolingual(folder, 0)),
            ("tiny-nllb", |folder| many_to_many(folder, 0)),
            ("tiny-m2m100", |folder| many_to_many(folder, 0)),
            ("tiny-mbart50", |folder| {
                mbart(folder, None, 0, Task::Translation)
            }),
            ("tiny-marian", |folder| marian(folder, [0, 0])),
        ];
        for (name, read) in readers {
            let nulls = changed(name, CONFIG, "{", "{");
            let absent = changed(name, CONFIG, "{", "{");
            // Those without which the files name no language stay.
            let keys = [
                "additional_special_tokens",
                "extra_special_tokens",
                "bos_token",
                "legacy_behaviour",
                "model_max_length",
                "separate_vocabs",
            ];
            without(absent.path(), &keys);
            edit(nulls.path(), CONFIG, |config| {
                keys.iter().for_each(|key| config[*key] = Value::Null);
            });
            let [nulls, absent] =
                [nulls, absent].map(|folder| read(&ModelFolder::new(folder.path())).unwrap());
            assert!(
                nulls.source.json == absent.source.json && nulls.target == absent.target,
                "{name}"
            );
            assert_eq!(nulls.languages, absent.languages, "{name}");
            assert_eq!(nulls.max_tokens, absent.max_tokens, "{name}");
        }
        let folder = changed("tiny-mt5", CONFIG, "{", "{");
        edit(folder.path(), CONFIG, |config| {
            config["additional_special_tokens"] = 3.into()
        });
        let refusal = monolingual(&ModelFolder::new(folder.path()), 0)
            .err()
            .unwrap()
            .chain()
            .to_string();
        insta::assert_snapshot!(refusal, @"cannot read `additional_special_tokens` in `tokenizer_config.json`: invalid type: integer `3`, expected a sequence");
    }

    #[test]
    fn pieces_that_the_vocabulary_lacks_are_unknown() {
        let folder = changed("tiny-marian", CONFIG, "{", "{");
        let pieces = SentencePieces::open(&folder.path().join("source.spm")).unwrap();
        let piece = pieces
            .pieces()
            .find(|piece| piece.starts_with('▁') && piece.chars().count() > 3)
            .unwrap();
        let before = marian(&ModelFolder::new(folder.path()), [178, 178]).unwrap();
        assert!(before.source.unknown_tokens.is_none());
        edit(folder.path(), VOCABULARY, |ids| {
            let ids = ids.as_object_mut().unwrap();
            let id = ids.remove(piece).unwrap();
            ids.insert("never produced".to_owned(), id);
        });
        let BuiltTokenizer {
            json: source,
            unknown_tokens,
        } = marian(&ModelFolder::new(folder.path()), [178, 178])
            .unwrap()
            .source;
        let unknown = unknown_tokens.unwrap();
        assert_eq!((unknown.from, unknown.read_as), (178, 1));
        let source = within_vocabulary_or_unknown(source, 178, Some(&unknown)).unwrap();
        let ids = Tokenizer::from_json(&source)
            .unwrap()
            .ids(piece.trim_start_matches('▁'));
        assert!(ids.unwrap().contains(&178));
        // Other ids beyond the table are refused.
        assert!(within_vocabulary_or_unknown(source, 170, Some(&unknown)).is_err());
    }

    #[test]
    fn listed_tokens_are_no_pieces_with_another_id() {
        let folder = changed("tiny-mbart50", CONFIG, "\"sw_KE\"", "\"a\"");
        let refusal = mbart(&ModelFolder::new(folder.path()), None, 0, Task::Translation)
            .err()
            .unwrap()
            .to_string();
        assert!(
            refusal.starts_with("expected the token `a` with the id "),
            "{refusal}"
        );
    }

    #[test]
    fn a_list_of_special_tokens_has_all_languages() {
        let check = |listed: Value| {
            let folder = tempfile::tempdir().unwrap();
            let config = serde_json::json!({ "extra_special_tokens": listed });
            fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
            let config = Config::open(&ModelFolder::new(folder.path())).unwrap();
            config.check_special(&["__de__".to_owned(), "__fr__".to_owned()])
        };
        for listed in [
            serde_json::json!([]),
            serde_json::json!({"a": "b"}),
            serde_json::json!(["__fr__", {"content": "__de__"}, "a"]),
        ] {
            check(listed).unwrap();
        }
        let error = check(serde_json::json!(["a", "__de__"]))
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("but found none for `__fr__`"), "{error}");
    }
}
