# template.yaml's smallest deployment, for Terraform: an HTTP API that requires keys, and one function that has its
# models packed in. `make package` makes the archive.

terraform {
  required_version = ">= 1.5"
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

variable "architecture" {
  description = "Processor architecture of the archive: that of the machine that made it"
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
  function_name    = "${var.name}-api"
  role             = aws_iam_role.function.arn
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.architecture]
  filename         = var.archive
  source_code_hash = filebase64sha256(var.archive)
  memory_size      = var.memory
  # Below API Gateway's 30 s, so that the function itself answers a request that timed out.
  timeout = 29

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
  integration_uri        = aws_lambda_function.api.arn
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
