# template.yaml's smallest deployment, for Terraform: an HTTP API that requires keys, and one function that has its
# models packed in. `make package` makes the archive, `make image` the container image.

terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.80" }
  }
}

variable "name" {
  description = "Name of the deployment"
  type        = string
  default     = "kivu"
}

variable "archive" {
  description = "The archive that `make package` makes"
  type        = string
  default     = "../../target/lambda/kivu-api.zip"
}

variable "image" {
  description = "An image in ECR by its digest, instead of the archive: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:..."
  type        = string
  default     = ""
}

variable "snap_start" {
  description = "Start environments of the image from a snapshot in which models are loaded"
  type        = bool
  default     = false

  validation {
    condition     = !var.snap_start || var.image != ""
    error_message = "snap_start needs image, because Lambda takes no snapshots of archives for this runtime"
  }
}

variable "architecture" {
  description = "Processor architecture of the archive or image: that of the machine that made an archive"
  type        = string
  default     = "x86_64"

  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "expected arm64 or x86_64"
  }
}

variable "memory" {
  description = "MB of the function; its CPU share is proportional, and 1769 MB is one CPU"
  type        = number
  default     = 1769
}

variable "log_days" {
  description = "Log retention in days"
  type        = number
  default     = 30
}

locals {
  is_image = var.image != ""
  suffix   = local.is_image ? "-image" : ""
}

# The keys: `kivu key NAME` makes a key and its line, `aws secretsmanager put-secret-value` stores the lines.
resource "aws_secretsmanager_secret" "keys" {
  name_prefix = "${var.name}-keys-"
  description = "API keys, one per line, as NAME:SHA256"
}

resource "aws_secretsmanager_secret_version" "keys" {
  secret_id     = aws_secretsmanager_secret.keys.id
  secret_string = "# NAME:SHA256 of a key, one a line; `kivu key NAME` makes both\n"

  # Otherwise Terraform would delete the keys that were added.
  lifecycle {
    ignore_changes = [secret_string]
  }
}

resource "aws_iam_role" "function" {
  name_prefix = "${var.name}-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "lambda.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "function" {
  role = aws_iam_role.function.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["logs:CreateLogStream", "logs:PutLogEvents"], Resource = "${aws_cloudwatch_log_group.function.arn}:*" },
      { Effect = "Allow", Action = "secretsmanager:GetSecretValue", Resource = aws_secretsmanager_secret.keys.arn },
    ]
  })
}

resource "aws_cloudwatch_log_group" "function" {
  name              = "/aws/lambda/${var.name}-api"
  retention_in_days = var.log_days
}

resource "aws_lambda_function" "api" {
  # Lambda cannot change a function's kind of package, so an image is another function.
  function_name    = "${var.name}-api${local.suffix}"
  role             = aws_iam_role.function.arn
  package_type     = local.is_image ? "Image" : "Zip"
  image_uri        = local.is_image ? var.image : null
  runtime          = local.is_image ? null : "provided.al2023"
  handler          = local.is_image ? null : "bootstrap"
  architectures    = [var.architecture]
  filename         = local.is_image ? null : var.archive
  source_code_hash = local.is_image ? null : filebase64sha256(var.archive)
  memory_size      = var.memory
  # Below API Gateway's 30 s, so that the function itself answers a request that timed out.
  timeout = 29
  # Only versions have snapshots.
  publish = var.snap_start

  dynamic "snap_start" {
    for_each = var.snap_start ? ["PublishedVersions"] : []
    content {
      apply_on = snap_start.value
    }
  }

  logging_config {
    log_format = "JSON"
    log_group  = aws_cloudwatch_log_group.function.name
  }

  environment {
    variables = {
      KIVU_MODELS            = "models"
      KIVU_AUTH__MODE        = "keys"
      KIVU_AUTH__KEYS_SECRET = aws_secretsmanager_secret.keys.arn
    }
  }
}

resource "aws_apigatewayv2_api" "api" {
  name          = var.name
  protocol_type = "HTTP"
}

resource "aws_apigatewayv2_integration" "api" {
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = var.snap_start ? aws_lambda_function.api.qualified_arn : aws_lambda_function.api.arn
  payload_format_version = "2.0"
  timeout_milliseconds   = 30000
}

# The function itself checks keys, so that clients get their dialect's error.
resource "aws_apigatewayv2_route" "api" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "$default"
  target    = "integrations/${aws_apigatewayv2_integration.api.id}"
}

resource "aws_apigatewayv2_stage" "api" {
  api_id      = aws_apigatewayv2_api.api.id
  name        = "$default"
  auto_deploy = true

  default_route_settings {
    throttling_rate_limit  = 50
    throttling_burst_limit = 100
  }
}

resource "aws_lambda_permission" "api" {
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.api.function_name
  qualifier     = var.snap_start ? aws_lambda_function.api.version : null
  principal     = "apigateway.amazonaws.com"
  source_arn    = "${aws_apigatewayv2_api.api.execution_arn}/*"
}

output "url" {
  description = "Base URL of the API"
  value       = aws_apigatewayv2_api.api.api_endpoint
}

output "keys" {
  description = "Secret with the hashes of the API keys"
  value       = aws_secretsmanager_secret.keys.arn
}
