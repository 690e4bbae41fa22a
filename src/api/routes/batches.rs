//! OpenAI's routes for files and batches.

use schemars::JsonSchema;

use crate::api::{
    batches::handlers::{self as batches, Batch, BatchRequest},
    dialect::Dialect,
    files::{
        FileObject, List, Order,
        handlers::{self as files, FileDeleted, UploadForm},
    },
    route::{Api, Route, RouteMethod, delete, get, post},
};

pub(super) const BATCHES: Api = Api {
    name: "OpenAI batches",
    description: "Files with requests, which run in the background. Callers with keys see only their own files and batches.",
    dialect: Dialect::OpenAi,
    prefix: None,
    routes: &[
        post!("/v1/files", "create_file", files::create, "Upload a file")
            .optional()
            .request_of::<UploadForm>("multipart/form-data")
            .response::<FileObject>("The file.", FILE),
        get!("/v1/files", "list_files", files::list, "List the caller's files")
            .optional()
            .query::<String>("after", "The last id of the page before.")
            .query::<Limit>("limit", "Maximum length of the page.")
            .query::<Order>("order", "By creation time: `desc` (default) or `asc`.")
            .query::<String>("purpose", "Only files with this purpose: `batch` or `batch_output`.")
            .response::<List<FileObject>>("The files, newest first.", NONE),
        get!("/v1/files/{file_id}", "retrieve_file", files::retrieve, "Describe a file")
            .optional()
            .response::<FileObject>("The file.", FILE),
        delete!("/v1/files/{file_id}", "delete_file", files::delete, "Delete a file")
            .optional()
            .description("Batches that were created with it continue.")
            .response::<FileDeleted>(
                "The file is deleted.",
                r#"{"id": "file-019aaf3c1a2b5f0e8d7c6b5a49382716", "object": "file", "deleted": true}"#,
            ),
        get!("/v1/files/{file_id}/content", "download_file", files::content, "Download a file")
            .optional()
            .description("Large files in S3 are redirected to a link (302).")
            .response_of::<String>("application/octet-stream", "The file's contents.", None),
        post!("/v1/batches", "create_batch", batches::create, "Start a batch")
            .optional()
            .request::<BatchRequest>(
                r#"{"input_file_id": "file-019aaf3c1a2b5f0e8d7c6b5a49382716", "endpoint": "/v1/embeddings", "completion_window": "24h"}"#,
            )
            .response::<Batch>("The batch.", BATCH),
        get!("/v1/batches", "list_batches", batches::list, "List the caller's batches")
            .optional()
            .query::<String>("after", "The last id of the page before.")
            .query::<Limit>("limit", "Maximum length of the page.")
            .response::<List<Batch>>("The batches, newest first.", NONE),
        get!("/v1/batches/{batch_id}", "retrieve_batch", batches::retrieve, "Describe a batch")
            .optional()
            .response::<Batch>("The batch.", BATCH),
        post!("/v1/batches/{batch_id}/cancel", "cancel_batch", batches::cancel, "Cancel a batch")
            .optional()
            .response::<Batch>("The batch, whose requests do not run any more.", BATCH),
    ],
};

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct Limit(#[schemars(range(min = 1))] u32);

const NONE: &str = r#"{"object": "list", "data": [], "has_more": false}"#;

const FILE: &str = r#"{"id": "file-019aaf3c1a2b5f0e8d7c6b5a49382716", "object": "file", "bytes": 4096, "created_at": 1763910000, "expires_at": 1766502000, "filename": "requests.jsonl", "purpose": "batch", "status": "processed"}"#;

const BATCH: &str = r#"{"id": "batch_019aaf3c2c4d9f0e8d7c6b5a49382716", "object": "batch", "endpoint": "/v1/embeddings", "model": "minilm", "errors": null, "input_file_id": "file-019aaf3c1a2b5f0e8d7c6b5a49382716", "completion_window": "24h", "status": "in_progress", "output_file_id": null, "error_file_id": null, "created_at": 1763910010, "in_progress_at": 1763910011, "expires_at": 1763996410, "finalizing_at": null, "completed_at": null, "failed_at": null, "expired_at": null, "cancelling_at": null, "cancelled_at": null, "request_counts": {"total": 100, "completed": 60, "failed": 0}, "usage": null, "metadata": null}"#;
