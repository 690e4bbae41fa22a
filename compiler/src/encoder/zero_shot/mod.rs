//! Encoders that read labels: GLiNER, GLiNER2 and GLiClass.

pub mod gliclass;
pub mod gliner;
pub mod gliner2;
pub mod gliner2_head;
pub mod gliner_config;
pub mod label_encoder;
pub mod span_layers;
pub mod spans;
pub mod text_scores;
pub mod word_scores;
