-- A database and a role for each of Dagster and MLflow; psql takes the passwords from its environment. The image of
-- PostgreSQL runs this once, on an empty volume. Elsewhere: psql --username postgres --file deploy/databases.sql

\set ON_ERROR_STOP on
\getenv dagster_password DAGSTER_DB_PASSWORD
\getenv mlflow_password MLFLOW_DB_PASSWORD

CREATE ROLE dagster LOGIN PASSWORD :'dagster_password';
CREATE DATABASE dagster OWNER dagster;
REVOKE CONNECT ON DATABASE dagster FROM PUBLIC;

CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE mlflow OWNER mlflow;
REVOKE CONNECT ON DATABASE mlflow FROM PUBLIC;
