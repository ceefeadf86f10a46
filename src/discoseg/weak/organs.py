"""Volumes of adults' organs from the literature, for where nothing better is known of a structure's size.

They are those of the people who were measured: patients, children and other populations differ. Every number was read
in the abstract, or the table, that its source names; an organ without such a source is left out.
"""

from dataclasses import dataclass

from discoseg.errors import UserError

_HEARTS = "Hudsmith et al. 2005, J Cardiovasc Magn Reson 7:775–782; 108 healthy volunteers, cine MRI"
_BOTH_SEXES = "women's mean − 2 SD to men's mean + 2 SD"


@dataclass(frozen=True)
class OrganSize:
    """An interval of an organ's volume in millilitres by the name it has in ``--size-ml``, and whose it is.

    ``organs`` are the names of the organ, the usual one first; ``meaning`` says what the interval is.
    """

    organs: tuple[str, ...]
    name: str
    low_ml: float
    high_ml: float
    meaning: str
    source: str

    @property
    def about(self) -> str:
        """What the interval is and who measured it, for people."""
        return f"{self.meaning} ({self.source})"


_LV = ("LV", "left ventricle", "LV cavity", "left ventricular cavity")
_RV = ("RV", "right ventricle", "RV cavity", "right ventricular cavity")
_MYO = ("MYO", "myocardium", "LV myocardium", "left ventricular myocardium")
_MUSCLES = (
    "Kawel-Boehm et al. 2015, MRI, as in table 3 of Cardiovasc Diagn Ther 10:1918–1945, 2020, which does not say "
    "whether papillary muscles count"
)
_KIDNEYS = (
    "Roseman et al. 2017, Nephrol Dial Transplant, Framingham Heart Study; 1852 participants of 64 ± 9 years, not all "
    "healthy, MRI"
)
_PROSTATES = "Scand J Urol Nephrol Suppl 107:26–31, 1988 (PubMed 2453919); 175 normal men of 27 to 70 years, ultrasound"
_SPLEENS = "Caglar et al. 2014, Folia Morphologica, FM.2014.0038; 212 adults, normal spleens on CT"
_LIVERS = "Feng et al. 2017, World J Gastroenterol 23:4968–4977; 369 Chinese adults, CT"
_PANCREASES = "Saisho et al. 2007, Clin Anat 20:933–942; adults of 20 to 60 years without pancreatic disease, CT"

ORGAN_SIZES = (
    OrganSize(_LV, "adult-ed", 135 - 2 * 26, 160 + 2 * 29, f"end-diastolic, {_BOTH_SEXES}", _HEARTS),
    OrganSize(_LV, "adult-es", 42 - 2 * 12, 50 + 2 * 16, f"end-systolic, {_BOTH_SEXES}", _HEARTS),
    OrganSize(_RV, "adult-ed", 148 - 2 * 35, 190 + 2 * 33, f"end-diastolic, {_BOTH_SEXES}", _HEARTS),
    OrganSize(_RV, "adult-es", 56 - 2 * 18, 78 + 2 * 20, f"end-systolic, {_BOTH_SEXES}", _HEARTS),
    OrganSize(("LA", "left atrium"), "adult-max", 89 - 2 * 21, 103 + 2 * 30, f"largest, {_BOTH_SEXES}", _HEARTS),
    OrganSize(
        _MYO, "adult", (98 - 2 * 21) / 1.05, (134 + 2 * 21) / 1.05, f"mass at 1.05 g/ml, {_BOTH_SEXES}", _MUSCLES
    ),
    OrganSize(("kidneys", "both kidneys"), "adult", 278 - 2 * 54, 365 + 2 * 66, f"both, {_BOTH_SEXES}", _KIDNEYS),
    OrganSize(("prostate",), "adult", 11.3, 62.1, "from those without adenoma to those with it", _PROSTATES),
    OrganSize(("spleen",), "adult", 198 - 2 * 88, 198 + 2 * 88, "mean ± 2 SD", _SPLEENS),
    OrganSize(("liver",), "adult", 1205.41 - 2 * 257.53, 1205.41 + 2 * 257.53, "mean ± 2 SD", _LIVERS),
    OrganSize(("pancreas",), "adult", 72.4 - 2 * 25.8, 72.4 + 2 * 25.8, "mean ± 2 SD", _PANCREASES),
)


def find_organ_size(organ: str, name: str) -> OrganSize:
    """Return the size that a name stands for, by any of the organ's names in any case.

    >>> size = find_organ_size("Left_Ventricle", "adult-ed")
    >>> size.low_ml, size.high_ml
    (83, 218)
    """
    plain = " ".join(organ.casefold().replace("_", " ").replace("-", " ").split())
    for size in ORGAN_SIZES:
        if plain in map(str.casefold, size.organs) and name.casefold() == size.name:
            return size
    known = ", ".join(f"{size.organs[0]} {size.name}" for size in ORGAN_SIZES)
    raise UserError(f"no size {name!r} of {organ} is known, only {known}; give an interval such as 60:180")
