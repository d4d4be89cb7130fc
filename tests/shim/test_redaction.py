"""Secrets are known by the words of their names, and by nothing that only sounds like one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forebay.config import public_view, settings_table
from forebay.facts import LaunchFacts
from forebay.redaction import is_secret, without_secrets
from forebay.settings import Settings

WORDS = re.compile(r"\S+")
SECRET = WORDS.findall("""
api_key admin_api_key API_KEY apiKey apikey openai_apikey openaiApiKey api-keys api_keys_b x-api-key key keys KEY
watermark_key watermark_key_b watermark_key_2 watermark_config watermark_seed watermark_params
key_value key_b key_hex key_material private_key privateKey private_key_pem signing_key encryption_key aws_access_key_id
access_key secret_key secret secrets Secret client_secret clientSecret secret_value aws_secret_access_key
token TOKEN hf_token HF_TOKEN hfToken auth_token access_token access_tokens api_tokens refresh_token token_b token_2
token_value session_token bearer_token hf_token_read
password passwd passphrase db_password password_hash ssl-keyfile-password ssl_keyfile_password sslKeyfilePassword
credentials credential gcp_credentials credentials_json authorization proxy-authorization cookie session_cookies
routing_key_secret api_key_cache access_token_count user_tokens
pwd db_pwd pass DB_PASS smtpPass passcode creds awsCreds cred auth basic_auth AuthHeader oauth oauth2 bearer Bearer jwt
JWT_B otp totp sas AZURE_SAS sasToken dsn SENTRY_DSN connection_string connectionString conn_str connection_url
database_url DATABASE_URL redis_url db_uri signature x-amz-signature token2 key2 api_key2 password1 hf_token2
key_1 model_key
private_public_secret cache_key_secret public_api_key auth_type_key pass_config_password
""")

ORDINARY = WORDS.findall("""
num_reserved_tokens max_total_num_tokens max_tokens prompt_tokens completion_tokens cached_tokens num_tokens tokens
max_prefill_tokens min_new_tokens tokens_per_second time_per_output_token_ms token_ids eos_token_ids eos_token_id
stop_token_ids pad_token_id bos_token eos_token pad_token unk_token image_token image_token_id audio_token_index
added_tokens special_tokens input_token_logprobs output_token_logprobs output_token_ids_logprobs
token_usage token_type_ids
tokenizer tokenizer_path tokenizer_mode skip_tokenizer_init detokenizer_worker_num pretokenizer tokenization
keyboard monkey keyfile ssl_keyfile tls_keyfile keys_dir key_file api_key_file token_path password_file credentials_path
num_key_value_heads num_key_value_heads_per_layer key_value_heads key_dim key_head_dim linear_num_key_heads
linear_key_head_dim key_cache key_cache_dtype query_key_norm key_padding_mask sort_key primary_key key_names
public_key publicKey cache_key kv_cache_keys mm_keys master_key_dtype password_dtype
forward_pass num_forward_passes single_pass pass_config pass_through passes bypass compass auth_type auth_mode
function_signature assign design sass asset otpauth_file url base_url
keep_alive_timeout hockey watermark watermark_blocks high_watermark secretary author authors cookiecutter
model_path served_model_name vocab_size chat_template
""")


@pytest.mark.parametrize("name", SECRET)
def test_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_name_is_no_secret(name: str) -> None:
    assert not is_secret(name)


def test_no_fact_and_no_public_setting_is_taken_for_a_secret() -> None:
    assert [name for name in LaunchFacts.__struct_fields__ if is_secret(name)] == []
    table = settings_table()
    public = {name for name, setting in table.items() if not setting.row.secret}
    assert public_view(Settings()).keys() == public
    assert [name for name in table if table[name].row.secret and not is_secret(name)] == []


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ({"enable_key": True, "key": "k", "a": 1}, {"enable_key": True, "a": 1}),
        ({"a": [{"token": "t", "b": [{"password": "p"}]}]}, {"a": [{"b": [{}]}]}),
        ({"watermark_key_b": 15485863, "watermark": {"key": 7, "window": 4}}, {"watermark": {"window": 4}}),
        ({"extra": '{"access_key": "k", "bucket": "b"}'}, {"extra": '{"bucket":"b"}'}),
        ({"extra": ' {"bucket":  "b"}'}, {"extra": ' {"bucket":  "b"}'}),
        ({"template": "{% if key %}{{ token }}"}, {"template": "{% if key %}{{ token }}"}),
        ({"deep": '{"a":' * 5000}, {"deep": '{"a":' * 5000}),
        ({"extra": '[{"api_key": "k", "b": 1}]'}, {"extra": '[{"b":1}]'}),
        ({"extra": '[{"b":  1}]'}, {"extra": '[{"b":  1}]'}),
        ({"loaded_adapters": {"my-key": {"path": "p", "key": "k"}}}, {"loaded_adapters": {"my-key": {"path": "p"}}}),
        (
            {"lora_paths": {"my-key": "p"}, "lora_paths_b": {"my-key": "p"}},
            {"lora_paths": {"my-key": "p"}, "lora_paths_b": {}},
        ),
        ({"argv": ["--api-key", "abc", "--port", "80"]}, {"argv": ["--api-key", "***", "--port", "80"]}),
        ({"argv": ["-H", "Authorization: Bearer abc"]}, {"argv": ["-H", "Authorization: ***"]}),
        (None, None),
    ],
)
def test_secret_is_taken_out_at_any_depth(value: Any, left: Any) -> None:
    assert without_secrets(value) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("serve --api-key abc --port 80", "serve --api-key *** --port 80"),
        ("serve --api-key=abc --port=80", "serve --api-key=*** --port=80"),
        ("serve --api-key 'a b' x", "serve --api-key *** x"),
        ("API_KEY=abc PORT=80 serve", "API_KEY=*** PORT=80 serve"),
        ("Server=db;Password=abc;Port=1", "Server=db;Password=***;Port=1"),
        ("{'api_key': 'abc', 'port': 80}", "{'api_key': ***, 'port': 80}"),
        ('[{"api_key": "abc"', '[{"api_key": ***'),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("authorization=Basic abc", "authorization=***"),
        ("X-Api-Key: abc\r\nHost: h", "X-Api-Key: ***\r\nHost: h"),
        ("send Bearer abc.d-e_f, please", "send Bearer ***, please"),
        ("https://user:pw@host:80/p", "https://***@host:80/p"),
        ("https://hf_abc@host/p and redis://:pw@host", "https://***@host/p and redis://***@host"),
        ("https://host/p?token=abc&n=1", "https://host/p?token=***&n=1"),
    ],
)
def test_secret_in_a_text_is_starred(text: str, left: str) -> None:
    assert without_secrets({"text": text}) == {"text": left}


@pytest.mark.parametrize(
    "text",
    [
        "http://host:80/a@b",
        "my-key:latest",
        "/models/key-extraction",
        "KeyError: 'a'",
        "unknown key: a",
        "--max-tokens 5 --eos-token=</s> --key-file /k",
        "{% if key == 'a' %}{{ token }}{% endif %}",
        "a bearer",
        "mail@host",
        "",
        "[",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert without_secrets([text]) == [text]


@pytest.mark.parametrize(
    "piece", ["a", "a-", "--key ", "://", "://a:", "key='", 'key="', "bearer ", "key =", " ", "\n"]
)
def test_a_long_text_takes_no_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    assert len(without_secrets(text)) > 0
