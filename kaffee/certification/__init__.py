"""Certification without truth: what held-out data say about a surrogate, beside honest baselines."""

from kaffee.certification.certificate import AXES as AXES
from kaffee.certification.certificate import Certificate as Certificate
from kaffee.certification.certificate import CertificationSettings as CertificationSettings
from kaffee.certification.certificate import certify as certify
from kaffee.certification.linear import fit_linear as fit_linear
from kaffee.certification.verdicts import Verdict as Verdict
