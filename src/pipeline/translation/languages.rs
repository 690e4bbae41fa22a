//! Languages by whatever name a request gives them: a model's own code, an ISO code, or plain English.

use std::collections::{BTreeMap, BTreeSet};

use isolang::Language;

use super::settings::Languages;
use crate::error::{Error, Result, quoted};

/// Languages that ISO counts as several, and the one of them that is meant where a model has it: NLLB names
/// individual languages only.
const MEANT: [(&str, &str); 24] = [
    ("ara", "arb"),
    ("aym", "ayr"),
    ("aze", "azj"),
    ("din", "dik"),
    ("fas", "pes"),
    ("ful", "fuv"),
    ("kau", "knc"),
    ("kur", "kmr"),
    ("lav", "lvs"),
    ("mlg", "plt"),
    ("mon", "khk"),
    ("msa", "zsm"),
    ("nep", "npi"),
    ("nor", "nob"),
    ("ori", "ory"),
    ("orm", "gaz"),
    ("pus", "pbt"),
    ("que", "quy"),
    ("sqi", "als"),
    ("srd", "sro"),
    ("swa", "swh"),
    ("uzb", "uzn"),
    ("yid", "ydd"),
    ("zho", "cmn"),
];
/// English names that ISO spells otherwise.
const CALLED: [(&str, &str); 9] = [
    ("arabic", "ara"),
    ("greek", "ell"),
    ("farsi", "fas"),
    ("kurdish", "kur"),
    ("malay", "msa"),
    ("mandarin", "cmn"),
    ("nepali", "nep"),
    ("norwegian", "nor"),
    ("swahili", "swa"),
];
/// Names are looked for among those that are at least so alike.
const ALIKE: f64 = 0.7;

/// The languages of one side of a model, by every name that means one of them.
#[derive(Clone, Debug, Default)]
pub struct LanguageNames {
    codes: BTreeSet<String>,
    /// The codes that a name, in small letters, may mean.
    names: BTreeMap<String, BTreeSet<String>>,
}

impl LanguageNames {
    /// The names of languages with these codes.
    pub fn new<'a>(codes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names = Self::default();
        for code in codes {
            names.codes.insert(code.to_owned());
            for name in names_of(code) {
                names.names.entry(name.to_lowercase()).or_default().insert(code.to_owned());
            }
        }
        names
    }

    /// The code of the language called `name`, from the request's field `field`.
    ///
    /// A name that means none of the languages, or several, is refused; the error names the nearest.
    pub fn find(&self, field: &str, name: &str) -> Result<&str> {
        if let Some(code) = self.codes.get(name) {
            return Ok(code);
        }
        let wanted = name.trim().to_lowercase();
        let meant = self.names.get(&wanted).or_else(|| {
            // Another name of the same language, as `pt-BR` for a model of `pt`.
            let language = language(&wanted)?;
            let individual = MEANT.iter().find(|(many, _)| *many == language.to_639_3());
            let individual = individual.and_then(|(_, one)| self.names.get(*one));
            self.names.get(language.to_639_3()).or(individual)
        });
        let codes: Vec<&str> = meant.into_iter().flatten().map(String::as_str).collect();
        let codes: Vec<&str> = if self.names.contains_key(&wanted) {
            codes
        } else {
            codes.into_iter().filter(|code| adds_nothing(&wanted, code)).collect()
        };
        match codes[..] {
            [code] => Ok(code),
            [] => Err(self.unknown(field, name)),
            _ => Err(Error::invalid(format!(
                "expected one language in `{field}`, but `{}` means {}",
                name.escape_debug(),
                quoted(&codes)
            ))),
        }
    }

    /// Whether `name` means one of the languages.
    pub fn has(&self, name: &str) -> bool {
        self.find("", name).is_ok()
    }

    fn unknown(&self, field: &str, name: &str) -> Error {
        /// More than this of a name is not told.
        const SHOWN: usize = 40;
        let shown: String = name.chars().take(SHOWN).collect();
        let hint = match self.nearest(&shown) {
            Some((name, code)) if name.replace('-', "_") == code.to_lowercase() => {
                format!("the nearest is `{code}`")
            }
            Some((name, code)) => format!("the nearest is `{code}` ({name})"),
            None if self.codes.len() <= 8 => {
                format!("it has {}", quoted(&self.codes.iter().collect::<Vec<_>>()))
            }
            None => format!("it has {} others, by their codes or English names", self.codes.len()),
        };
        Error::invalid(format!(
            "expected a language of the model in `{field}`, but found `{}`; {hint}",
            shown.escape_debug()
        ))
    }

    /// The name that is most like `name`, and the code that it means.
    fn nearest(&self, name: &str) -> Option<(&str, &String)> {
        let wanted = name.trim().to_lowercase();
        let names = self.names.iter().filter_map(|(name, codes)| Some((name.as_str(), codes.first()?)));
        let alike = |(name, _): &(&str, &String)| strsim::normalized_damerau_levenshtein(&wanted, name);
        names
            .map(|known| (alike(&known), known))
            .filter(|(alike, _)| *alike >= ALIKE)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, known)| known)
    }
}

/// Every name of the language with that code.
fn names_of(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::from([code.to_owned(), code.replace('_', "-")]);
    let Some(language) = language(code) else { return names };
    let general = MEANT.iter().filter(|(_, one)| *one == language.to_639_3());
    let general = general.filter_map(|(many, _)| Language::from_639_3(many));
    for language in std::iter::once(language).chain(general) {
        names.insert(language.to_639_3().to_owned());
        names.extend(language.to_639_1().map(str::to_owned));
        names.insert(plain(language.to_name()).to_owned());
        let called = CALLED.iter().filter(|(_, code)| *code == language.to_639_3());
        names.extend(called.map(|(name, _)| (*name).to_owned()));
    }
    names
}

/// Whether what stands behind the language in `name` is a country, or a script where the model's code names none.
fn adds_nothing(name: &str, code: &str) -> bool {
    let Some((_, more)) = name.split_once(['_', '-']) else { return true };
    let is_country = more.len() == 2 || (more.len() == 3 && more.bytes().all(|byte| byte.is_ascii_digit()));
    is_country || (more.len() == 4 && !code.contains('_'))
}

/// A name without what ISO adds in brackets: "Modern Greek (1453-)".
fn plain(name: &str) -> &str {
    name.split(" (").next().unwrap_or(name)
}

/// The language of a code such as `pt`, `por`, `por_Latn` or `pt-BR`, or of an English name.
fn language(name: &str) -> Option<Language> {
    let first = name.split(['_', '-']).next().unwrap_or(name).to_lowercase();
    let by_code = match first.len() {
        2 => Language::from_639_1(&first),
        3 => Language::from_639_3(&first),
        _ => None,
    };
    let called = || CALLED.iter().find(|(called, _)| *called == name.to_lowercase());
    by_code.or_else(|| Language::from_639_3(called()?.1))
}

/// What a request says of its languages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedLanguages<'a> {
    /// The language of the texts.
    pub source: Option<&'a str>,
    /// The language that they are wanted in.
    pub target: Option<&'a str>,
}

/// The languages of a translation, by the model's codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The language of the texts.
    pub source: String,
    /// The language that they are wanted in.
    pub target: String,
}

/// The languages of a model, by all their names.
#[derive(Clone, Debug)]
pub struct Directions {
    sources: LanguageNames,
    targets: LanguageNames,
    source_by_default: Option<String>,
    target_by_default: Option<String>,
}

impl Directions {
    /// The languages of a model with these settings.
    pub fn new(languages: &Languages) -> Self {
        let one = |code: &String| (LanguageNames::new([code.as_str()]), Some(code.clone()));
        let many = |codes: &BTreeMap<String, i64>| {
            let names = LanguageNames::new(codes.keys().map(String::as_str));
            (
                names,
                Some(codes).filter(|codes| codes.len() == 1).and_then(|codes| codes.keys().next().cloned()),
            )
        };
        let (sources, targets) = match languages {
            Languages::Pair { source, target } => (one(source), one(target)),
            Languages::Prefix { source, targets } => (one(source), many(targets)),
            Languages::Tokens { codes, .. } => (many(codes), many(codes)),
        };
        Self {
            sources: sources.0,
            targets: targets.0,
            source_by_default: sources.1,
            target_by_default: targets.1,
        }
    }

    /// The languages that a request means. Each has to be named, unless the model has only one.
    pub fn find(&self, wanted: RequestedLanguages<'_>) -> Result<Pair> {
        match self.named(wanted)? {
            (Some(source), Some(target)) => Ok(Pair { source: source.to_owned(), target: target.to_owned() }),
            (None, None) => Err(Error::invalid(
                "expected the languages of the translation in `src_lang` and `tgt_lang`, but found neither",
            )),
            (None, Some(_)) => Err(Error::invalid("expected `src_lang` beside `tgt_lang`, but found none")),
            (Some(_), None) => Err(Error::invalid("expected `tgt_lang` beside `src_lang`, but found none")),
        }
    }

    /// The source and the target that a request means, as far as it or the model names them.
    pub(super) fn named(&self, wanted: RequestedLanguages<'_>) -> Result<(Option<&str>, Option<&str>)> {
        let source = pick(&self.sources, "src_lang", wanted.source, self.source_by_default.as_deref())?;
        let target = pick(&self.targets, "tgt_lang", wanted.target, self.target_by_default.as_deref())?;
        Ok((source, target))
    }

    /// The target that a request means, whatever its source.
    pub fn find_target(&self, name: &str) -> Result<&str> {
        self.targets.find("tgt_lang", name)
    }

    /// Two languages that the model translates between, whichever: for work whose outcome is not looked at.
    pub fn some_pair(&self) -> Pair {
        let source = self.sources.codes.first().cloned().unwrap_or_default();
        let other = self.targets.codes.iter().find(|code| **code != source);
        Pair { target: other.or(self.targets.codes.first()).cloned().unwrap_or_default(), source }
    }

    /// Two languages for an example: from English where the model has it, and into another one.
    pub fn example_pair(&self) -> Pair {
        let some = self.some_pair();
        let Ok(source) = self.sources.find("src_lang", "english") else { return some };
        let target = self.targets.codes.iter().find(|code| *code != source).cloned();
        Pair { source: source.to_owned(), target: target.unwrap_or(some.target) }
    }

    /// The number of languages that the model translates to.
    pub fn count(&self) -> usize {
        self.targets.codes.len()
    }

    /// Whether the model translates between the languages that a request names.
    pub fn has(&self, wanted: RequestedLanguages<'_>) -> bool {
        wanted.source.is_none_or(|source| self.sources.has(source))
            && wanted.target.is_none_or(|target| self.targets.has(target))
    }
}

fn pick<'a>(
    names: &'a LanguageNames,
    field: &str,
    wanted: Option<&str>,
    default: Option<&'a str>,
) -> Result<Option<&'a str>> {
    match wanted {
        Some(name) => names.find(field, name).map(Some),
        None => Ok(default),
    }
}

/// Whether texts of the language put no spaces between their words.
pub(super) fn is_written_without_spaces(code: &str) -> bool {
    const WITHOUT: [&str; 10] = ["zho", "cmn", "yue", "wuu", "jpn", "tha", "lao", "khm", "mya", "bod"];
    language(code).is_some_and(|language| WITHOUT.contains(&language.to_639_3()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nllb() -> LanguageNames {
        LanguageNames::new([
            "eng_Latn", "fra_Latn", "por_Latn", "arb_Arab", "pes_Arab", "zho_Hans", "zho_Hant", "lvs_Latn",
            "ell_Grek", "nob_Latn", "nno_Latn",
        ])
    }

    #[test]
    fn languages_go_by_many_names() {
        let cases = [
            ("fra_Latn", "fra_Latn"),
            ("fr", "fra_Latn"),
            ("FR", "fra_Latn"),
            ("fra", "fra_Latn"),
            ("French", "fra_Latn"),
            (" french ", "fra_Latn"),
            ("fra-latn", "fra_Latn"),
            ("pt-BR", "por_Latn"),
            ("ar", "arb_Arab"),
            ("Arabic", "arb_Arab"),
            ("Persian", "pes_Arab"),
            ("farsi", "pes_Arab"),
            ("Latvian", "lvs_Latn"),
            ("el", "ell_Grek"),
            ("Greek", "ell_Grek"),
            ("no", "nob_Latn"),
            ("zho_Hans", "zho_Hans"),
        ];
        for (name, code) in cases {
            assert_eq!(nllb().find("src_lang", name).map_err(|error| error.to_string()), Ok(code), "{name}");
        }
        let m2m100 = LanguageNames::new(["en", "fr", "zh", "ar", "fa", "sw", "ceb", "no"]);
        for (name, code) in
            [("Chinese", "zh"), ("zho", "zh"), ("ceb", "ceb"), ("Cebuano", "ceb"), ("swa", "sw")]
        {
            assert_eq!(m2m100.find("src_lang", name).map_err(|error| error.to_string()), Ok(code), "{name}");
        }
        let pair = LanguageNames::new(["pt"]);
        assert_eq!(pair.find("tgt_lang", "Portuguese").unwrap(), "pt");
        assert_eq!(pair.find("tgt_lang", "por_Latn").unwrap(), "pt");
    }

    #[test]
    fn an_unknown_language_hears_of_the_nearest() {
        let error = |name: &str| nllb().find("tgt_lang", name).unwrap_err();
        insta::assert_snapshot!(error("Frensh"), @"expected a language of the model in `tgt_lang`, but found `Frensh`; the nearest is `fra_Latn` (french)");
        insta::assert_snapshot!(error("eng_Lat"), @"expected a language of the model in `tgt_lang`, but found `eng_Lat`; the nearest is `eng_Latn`");
        insta::assert_snapshot!(error("Klingon"), @"expected a language of the model in `tgt_lang`, but found `Klingon`; it has 11 others, by their codes or English names");
        insta::assert_snapshot!(error("zh"), @"expected one language in `tgt_lang`, but `zh` means `zho_Hans`, `zho_Hant`");
        let pair = LanguageNames::new(["pt"]);
        insta::assert_snapshot!(pair.find("tgt_lang", "de").unwrap_err(), @"expected a language of the model in `tgt_lang`, but found `de`; it has `pt`");
        assert!(error(&"x".repeat(1_000_000)).to_string().len() < 200);
    }

    #[test]
    fn a_language_is_named_unless_there_is_one_only() {
        let codes: BTreeMap<String, i64> = [("en".to_owned(), 7), ("fr".to_owned(), 8)].into();
        let many = Directions::new(&Languages::Tokens { codes, side: super::super::TokenSide::Before });
        let find = |source, target| {
            many.find(RequestedLanguages { source, target }).map_err(|error| error.to_string())
        };
        assert_eq!(find(Some("English"), Some("fr")), Ok(Pair { source: "en".into(), target: "fr".into() }));
        insta::assert_snapshot!(find(None, None).unwrap_err(), @"expected the languages of the translation in `src_lang` and `tgt_lang`, but found neither");
        insta::assert_snapshot!(find(None, Some("fr")).unwrap_err(), @"expected `src_lang` beside `tgt_lang`, but found none");
        insta::assert_snapshot!(find(Some("en"), None).unwrap_err(), @"expected `tgt_lang` beside `src_lang`, but found none");
        let pair = Directions::new(&Languages::Pair { source: "en".into(), target: "pt".into() });
        assert_eq!(pair.find(RequestedLanguages::default()).unwrap().target, "pt");
        assert!(pair.has(RequestedLanguages { source: Some("English"), target: None }));
        assert!(!pair.has(RequestedLanguages { source: Some("pt"), target: None }));
    }

    #[test]
    fn an_example_names_two_languages_that_the_model_has() {
        let directions = |codes: &[&str]| {
            let codes = codes.iter().map(|code| ((*code).to_owned(), 7)).collect();
            Directions::new(&Languages::Tokens { codes, side: super::super::TokenSide::Before })
        };
        let pair = directions(&["ace_Arab", "eng_Latn", "fra_Latn"]).example_pair();
        assert_eq!((pair.source.as_str(), pair.target.as_str()), ("eng_Latn", "ace_Arab"));
        let pair = directions(&["de", "fr"]).example_pair();
        assert_eq!((pair.source.as_str(), pair.target.as_str()), ("de", "fr"));
    }
}
