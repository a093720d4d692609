"""Words for gcloud, against its flags, and mistakes that are found before it runs."""

import shlex

import pytest

from bert_keras import chips, cli
from bert_keras.errors import InputError
from bert_keras.tpu.launch import commands, planned

# Flags of gcloud's commands. Those of `instances`: its own specification in the npm
# package @withfig/autocomplete 2.692.3, and for the last three, newer ones,
# docs.cloud.google.com/tpu/docs/spot-compute and
# cloud.google.com/compute/docs/instances/limit-vm-runtime. Those of `queued-resources`:
# cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/create. Read on
# 2026-11-22.
FLAGS = {
    "compute instances create": "boot-disk-size image-family image-project labels "
    "machine-type maintenance-policy metadata metadata-from-file project scopes "
    "service-account zone no-restart-on-failure "
    "provisioning-model instance-termination-action max-run-duration",
    "compute instances describe": "format project zone",
    "compute instances delete": "delete-disks keep-disks project quiet zone",
    "compute tpus queued-resources create": "accelerator-type async data-disk "
    "description guaranteed internal-ips labels metadata metadata-from-file network "
    "node-count node-id node-prefix project range reserved runtime-version scopes "
    "service-account spot subnetwork tags topology type valid-after-duration "
    "valid-after-time valid-until-duration valid-until-time zone",
    "compute tpus queued-resources describe": "format project zone",
    "compute tpus queued-resources delete": "async force project quiet zone",
    "storage cp": "",
    "storage ls": "",
    "storage cat": "",
    "storage rm": "",
}


def rental(on: str = "v5e-8", **more) -> commands.Rental:
    values = {
        "project": "p",
        "zone": "us-central1-a",
        "staging": "gs://b/launch",
        "max_hours": 2.0,
        "arguments": ("pretrain", "--output_dir", "gs://b/runs/base"),
    } | more
    return commands.Rental(device=chips.parse_device(on), **values)


@pytest.mark.parametrize("on", ["v5e-1", "v5e-8", "v6e-8", "v4-8", "v5p-8", "v5e-16"])
@pytest.mark.parametrize("spot", [True, False])
def test_every_flag_is_one_of_gclouds(on, spot):
    found = rental(on, spot=spot, service_account="me@p.iam.gserviceaccount.com")
    for _, words in planned(found, staged=["wheel.whl"]):
        assert words[0] == "gcloud"
        named = [word for word in words[1:] if not word.startswith("--")]
        (command,) = (
            name for name in FLAGS if named[: len(name.split())] == name.split()
        )
        known = {f"--{flag}" for flag in FLAGS[command].split()}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, command


def test_a_spot_machine_of_compute_engine():
    assert shlex.join(commands.create(rental(), script="s.sh", seconds=7200)) == (
        "gcloud compute instances create bert-keras-pretrain-62f81ca9 --project=p "
        "--zone=us-central1-a --machine-type=ct5lp-hightpu-8t "
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e "
        "--image-project=ubuntu-os-accelerator-images --boot-disk-size=200GB "
        "--maintenance-policy=TERMINATE --provisioning-model=SPOT "
        "--instance-termination-action=DELETE --max-run-duration=7200s "
        "--labels=tool=bert-keras,run=bert-keras-pretrain-62f81ca9 "
        "--metadata-from-file=startup-script=s.sh --scopes=cloud-platform "
        "--no-restart-on-failure"
    )


def test_a_queued_slice_of_several_hosts():
    found = rental("v5e-16", spot=False)
    assert shlex.join(commands.create(found, script="s.sh", seconds=60)) == (
        "gcloud compute tpus queued-resources create bert-keras-pretrain-62f81ca9 "
        "--project=p --zone=us-central1-a --node-id=bert-keras-pretrain-62f81ca9 "
        "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite "
        "--valid-until-duration=60s "
        "--labels=tool=bert-keras,run=bert-keras-pretrain-62f81ca9 "
        "--metadata-from-file=startup-script=s.sh --scopes=cloud-platform --async"
    )
    assert shlex.join(commands.delete(found)) == (
        "gcloud compute tpus queued-resources delete bert-keras-pretrain-62f81ca9 "
        "--project=p --zone=us-central1-a --force --quiet"
    )


def test_one_run_has_one_name():
    arguments = ("pretrain", "--output_dir=gs://b/runs/base/")
    assert rental(arguments=arguments).name == rental().name
    other = ("pretrain", "--output_dir", "gs://b/runs/other")
    assert rental(arguments=other).name != rental().name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"on": "h100x8"}, "--on: expected a TPU slice, got h100x8"),
        ({"staging": "/tmp"}, "--staging expects gs://BUCKET/..., got '/tmp'"),
        ({"max_hours": 0}, "--max_hours: expected 0.05 to 2,880"),
        ({"max_hours": float("nan")}, "--max_hours: expected 0.05 to 2,880"),
        ({"arguments": ()}, "give the command to run after `--`"),
        ({"arguments": ("demo",)}, "give the command to run after `--`"),
        (
            {"arguments": ("pretrain", "--output_dir", "runs")},
            "--output_dir expects gs://BUCKET/..., since the machine's disk goes with",
        ),
        (
            {"arguments": ("pretrain", "--strategy", "cpu")},
            "--strategy is `tpu` on a TPU: leave it out",
        ),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(InputError, match=f"^{message}"):
        rental(**fields)


LAUNCH = "launch tpu --project p --zone z --staging gs://b/s --max_hours 2 --on v6e-8"
RUN = "pretrain --config bert_base --examples gs://b/e --output_dir gs://b/r"


def test_a_dry_run_prints_what_would_run(capsys):
    assert cli.main([*LAUNCH.split(), "--dry_run", "--", *RUN.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert comments[0] == "# stage the code"
    assert comments[-1] == "# delete"
    assert "--machine-type=ct6e-standard-8t" in lines[3]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{RUN} --set model.hidden_sise=1", "hidden_sise"),
        (f"{RUN} --no_such_option", "no option '--no_such_option'"),
        ("", "give the command to run after `--`"),
    ],
)
def test_a_mistake_in_the_command_costs_nothing(command, message, capsys):
    assert cli.main([*LAUNCH.split(), "--", *command.split()]) == 2
    assert message in capsys.readouterr().err
