//! Encoder families: a row per `model_type` with what its files leave to the classes in `transformers`.
//!
//! A family's layers are read by its reader in `encoder/families`, and its keys without effect are in `keys/keys.toml`.

/// Properties that a `model_type` determines, whatever else is in the files.
#[derive(Debug)]
pub struct Family {
    pub model_type: &'static str,
    /// Fields with the sizes of the layers.
    pub sizes: &'static SizeFields,
    pub positions: FirstPosition,
    pub tokenizer: TokenizerFiles,
    /// The tokenizer's class if no file names one, without `Fast`; empty if the model's class has none.
    pub tokenizer_class: &'static str,
    /// The only classes with the tokenizer that the model's class has; empty if it reads those of other families, too.
    pub own_tokenizer_classes: &'static [&'static str],
    /// Whether the tokenizer is that of version 5 of `transformers`, in which `tokenizer.json` decides on a space before a text.
    pub is_newer: bool,
    /// Whether the tokenizer returns token types if no file names its class.
    pub returns_types: bool,
    /// Number of token types if no file says.
    pub types: usize,
    /// The class with a masked language model's head, for sparse vectors.
    pub masked_class: Option<&'static str>,
    /// Whether it computes longer texts than its files declare.
    pub is_unlimited: bool,
    /// Code outside of `transformers` that Kivu implements.
    pub code: Option<Code>,
    /// Another family with the same `model_type`, told apart by other fields.
    pub jina: Option<Jina>,
}

/// Families of Jina's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jina {
    /// jina-embeddings-v2.
    V2,
    /// jina-embeddings-v3 in its authors' form.
    V3,
}

/// Names of the fields for sizes. Some classes have two names for a field.
#[derive(Debug)]
pub struct SizeFields {
    pub hidden: &'static [&'static str],
    pub layers: &'static [&'static str],
    pub heads: &'static [&'static str],
    pub positions: &'static [&'static str],
}

impl SizeFields {
    const SHARED: Self = Self {
        hidden: &["hidden_size"],
        layers: &["num_hidden_layers"],
        heads: &["num_attention_heads"],
        positions: &["max_position_embeddings"],
    };
    const DISTILBERT: Self = Self {
        hidden: &["hidden_size", "dim"],
        layers: &["num_hidden_layers", "n_layers"],
        heads: &["num_attention_heads", "n_heads"],
        ..Self::SHARED
    };
    const NEOBERT: Self = Self {
        positions: &["max_length"],
        ..Self::SHARED
    };
    const NOMIC: Self = Self {
        hidden: &["hidden_size", "n_embd"],
        layers: &["num_hidden_layers", "n_layer"],
        heads: &["num_attention_heads", "n_head"],
        positions: &["max_position_embeddings", "n_positions"],
    };
    /// Names in any class, for exports.
    pub const ANY: Self = Self {
        hidden: &["hidden_size", "dim", "n_embd", "d_model"],
        positions: Self::NOMIC.positions,
        ..Self::SHARED
    };
}

/// The row of a position table for a text's first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstPosition {
    Zero,
    /// The row after the padding id.
    AfterPadding,
    /// The row after this padding id, whatever the config says.
    AfterFixedPadding(i64),
}

/// The files with a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerFiles {
    /// `tokenizer.json`, or the vocabulary of its class.
    Any,
    /// Or else byte pairs with RoBERTa's special tokens.
    BytePairs,
    /// Or else byte pairs with BERT's special tokens.
    BertBytePairs,
    /// BERT's, in the form of the authors' code or of `transformers`.
    Nomic,
    /// That of any class, in the form of the authors' code or of `transformers`.
    Gte,
    T5,
    /// Byte pairs, whose texts end with the end token.
    Bart,
}

/// Custom model code: the files, and the prefix of the class names.
#[derive(Debug)]
pub struct Code {
    pub files: &'static [&'static str],
    pub classes: &'static str,
    /// SHA-256 of the known files; empty if their names are enough.
    pub known: &'static [&'static str],
}

/// The module that rounds vectors to 8 bits (pplx-embed-v1), with its file.
pub const QUANTIZER: &str = "st_quantize.FlexibleQuantizer";
pub const QUANTIZER_FILE: &str = "st_quantize.py";
/// SHA-256 of that file: in pplx-embed-v1, and in `tests/fixtures/models`.
pub const QUANTIZERS: [&str; 2] = [
    "320c54decc6a150bbfbef5eff4765291e66fb7506503ee65776809d99938faad",
    "b132c54f5bedc836649c07ca8eb6232c9a65604c86687783588d215d1704c7a1",
];

/// The defaults of most families.
const fn family(model_type: &'static str) -> Family {
    Family {
        model_type,
        sizes: &SizeFields::SHARED,
        positions: FirstPosition::Zero,
        tokenizer: TokenizerFiles::Any,
        tokenizer_class: "",
        own_tokenizer_classes: &[],
        is_newer: false,
        returns_types: true,
        types: 0,
        masked_class: None,
        is_unlimited: false,
        code: None,
        jina: None,
    }
}

/// BERT and its successors with token types.
const fn bert(model_type: &'static str, tokenizer_class: &'static str) -> Family {
    Family {
        tokenizer_class,
        types: 2,
        ..family(model_type)
    }
}

/// RoBERTa and its successors.
const fn roberta(model_type: &'static str, tokenizer_class: &'static str) -> Family {
    Family {
        positions: FirstPosition::AfterPadding,
        tokenizer: TokenizerFiles::BytePairs,
        tokenizer_class,
        returns_types: false,
        ..family(model_type)
    }
}

/// Families without a position table.
const fn unlimited(model_type: &'static str) -> Family {
    Family {
        is_unlimited: true,
        ..family(model_type)
    }
}

/// Families that only version 5 of `transformers` has. It makes other classes' tokenizers from their vocabularies.
const fn newer(model_type: &'static str) -> Family {
    Family {
        own_tokenizer_classes: &["PreTrainedTokenizer", "TokenizersBackend"],
        is_newer: true,
        ..unlimited(model_type)
    }
}

const fn gemma(model_type: &'static str) -> Family {
    Family {
        tokenizer_class: "GemmaTokenizer",
        ..unlimited(model_type)
    }
}

const fn t5(model_type: &'static str) -> Family {
    Family {
        tokenizer: TokenizerFiles::T5,
        ..unlimited(model_type)
    }
}

const fn code(files: &'static [&'static str], classes: &'static str) -> Option<Code> {
    known_code(files, classes, &[])
}

const fn known_code(
    files: &'static [&'static str],
    classes: &'static str,
    known: &'static [&'static str],
) -> Option<Code> {
    Some(Code {
        files,
        classes,
        known,
    })
}

/// LFM2 that attends to all tokens: in LFM2.5-Encoder-350M, and in `tests/fixtures/models`.
const LFM2_CODE: [&str; 2] = [
    "f171f518be2a07da48b17fdea5655cad0a2452ab548e90e8ae903143686647e2",
    "c1c7413824c33a5f62f1fa60728c03867a15fb46b46c440298298ea1eea8630e",
];
/// Qwen3 that attends to all tokens: in pplx-embed-v1-0.6b (two files), and in `tests/fixtures/models`.
const PPLX_CODE: [&str; 4] = [
    "baf57b645c7ca3f9e2bd57bd0de82c540c7b455665f1b0ef5ee2f29d60cb8ed5",
    "e914aa73614c91703364c77917313da0821ea04a14d73a7836b5cb40abab1671",
    "fda4b97412e0e0b918a25f3370a1b3beead2ff0c0897ec82bd25773c2ac4c096",
    "3e3071942ca0609b7dd19a180e5566ad17f0a1c8e29d11e6fead92e4bd221027",
];
/// The same with a projection: in voyage-4-nano, and in `tests/fixtures/models`.
const VOYAGE_CODE: [&str; 2] = [
    "f4340347ce92a764e6ce6dc76fb4e412a6ab876dd33e61a9ed4de7595c697728",
    "1c8400bf55846da87ab1587fc12d77dcea5931e0de3d30148ec23e2fb65a70a8",
];

/// Supported encoder families, in the order of error messages.
static FAMILIES: [Family; 42] = [
    Family {
        masked_class: Some("BertForMaskedLM"),
        code: code(&["configuration_bert", "modeling_bert"], "JinaBert"),
        jina: Some(Jina::V2),
        ..bert("bert", "BertTokenizer")
    },
    Family {
        sizes: &SizeFields::DISTILBERT,
        tokenizer_class: "DistilBertTokenizer",
        masked_class: Some("DistilBertForMaskedLM"),
        ..family("distilbert")
    },
    Family {
        masked_class: Some("RobertaForMaskedLM"),
        ..roberta("roberta", "RobertaTokenizer")
    },
    Family {
        masked_class: Some("XLMRobertaForMaskedLM"),
        code: code(
            &[
                "configuration_xlm_roberta",
                "modeling_lora",
                "modeling_xlm_roberta",
            ],
            "XLMRoberta",
        ),
        jina: Some(Jina::V3),
        ..roberta("xlm-roberta", "XLMRobertaTokenizer")
    },
    roberta("camembert", ""),
    roberta("data2vec-text", "RobertaTokenizer"),
    roberta("xlm-roberta-xl", "XLMRobertaTokenizer"),
    roberta("roberta-prelayernorm", "RobertaTokenizer"),
    bert("electra", "ElectraTokenizer"),
    bert("ernie", "BertTokenizer"),
    bert("albert", "AlbertTokenizer"),
    bert("megatron-bert", "BertTokenizer"),
    bert("mobilebert", "BertTokenizer"),
    // Its own tokenizer divides Chinese by a dictionary: see `tokenizer_classes.rs`.
    bert("roformer", "RoFormerTokenizer"),
    Family {
        tokenizer: TokenizerFiles::BertBytePairs,
        tokenizer_class: "DebertaTokenizer",
        ..family("deberta")
    },
    family("deberta-v2"),
    Family {
        positions: FirstPosition::AfterFixedPadding(1),
        tokenizer_class: "MPNetTokenizer",
        returns_types: false,
        masked_class: Some("MPNetForMaskedLM"),
        ..family("mpnet")
    },
    Family {
        masked_class: Some("ModernBertForMaskedLM"),
        ..unlimited("modernbert")
    },
    Family {
        sizes: &SizeFields::NEOBERT,
        tokenizer_class: "BertTokenizer",
        code: code(&["model"], "NeoBERT"),
        ..family("neobert")
    },
    Family {
        sizes: &SizeFields::NOMIC,
        tokenizer: TokenizerFiles::Nomic,
        code: code(
            &["configuration_hf_nomic_bert", "modeling_hf_nomic_bert"],
            "NomicBert",
        ),
        ..unlimited("nomic_bert")
    },
    Family {
        tokenizer: TokenizerFiles::BytePairs,
        tokenizer_class: "XLMRobertaTokenizer",
        ..family("jina_embeddings_v3")
    },
    Family {
        code: code(
            &[
                "configuration_jina_embeddings_v5",
                "modeling_jina_embeddings_v5",
            ],
            "JinaEmbeddingsV5",
        ),
        ..unlimited("jina_embeddings_v5")
    },
    Family {
        masked_class: Some("NewForMaskedLM"),
        code: code(&["configuration", "modeling"], "New"),
        ..unlimited("new")
    },
    Family {
        tokenizer: TokenizerFiles::Gte,
        masked_class: Some("GteForMaskedLM"),
        code: code(
            &[
                "configuration_hf_alibaba_nlp_gte",
                "modeling_hf_alibaba_nlp_gte",
            ],
            "Gte",
        ),
        ..unlimited("gte")
    },
    Family {
        code: code(&["configuration_eurobert", "modeling_eurobert"], "EuroBert"),
        ..newer("eurobert")
    },
    Family {
        masked_class: Some("UltrabertForMaskedLM"),
        ..newer("ultrabert")
    },
    unlimited("llama"),
    unlimited("mistral"),
    Family {
        is_newer: true,
        ..unlimited("ministral3")
    },
    // Version 4.57 has it, too, but no other tokenizers.
    Family {
        code: known_code(
            &["modeling_lfm2_bidirectional"],
            "Lfm2Bidirectional",
            &LFM2_CODE,
        ),
        ..newer("lfm2")
    },
    unlimited("qwen2"),
    Family {
        code: known_code(
            &["modeling_qwen3_bidirectional"],
            "Qwen3Bidirectional",
            &VOYAGE_CODE,
        ),
        ..unlimited("qwen3")
    },
    Family {
        code: known_code(&["configuration", "modeling"], "PPLXQwen3", &PPLX_CODE),
        ..unlimited("bidirectional_pplx_qwen3")
    },
    gemma("gemma"),
    gemma("gemma2"),
    gemma("gemma3_text"),
    newer("openai_privacy_filter"),
    newer("embedding_gemma2"),
    newer("embedding_gemma2_text"),
    t5("t5"),
    t5("mt5"),
    Family {
        tokenizer: TokenizerFiles::Bart,
        tokenizer_class: "BartTokenizer",
        ..family("bart")
    },
];

impl Family {
    /// The family of a `model_type`, if it is supported.
    pub fn named(model_type: &str) -> Option<&'static Self> {
        FAMILIES
            .iter()
            .find(|family| family.model_type == model_type)
    }

    /// Whether a file is code that is compared with a known file.
    pub fn compares_code(file: &str) -> bool {
        let codes = FAMILIES.iter().filter_map(|family| family.code.as_ref());
        let mut known = codes.filter(|code| !code.known.is_empty());
        let is_of_family = |name: &str| known.any(|code| code.files.contains(&name));
        file == QUANTIZER_FILE || file.strip_suffix(".py").is_some_and(is_of_family)
    }

    /// Supported `model_type`s.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().map(|family| family.model_type)
    }
    /// Classes with a masked language model's head, for sparse vectors.
    pub fn masked_classes() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().filter_map(|family| family.masked_class)
    }
}
